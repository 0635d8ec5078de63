//! The tunnel of a proxy, and the identities of its clients.

/// A tunnel whose connections and ports belong to clients, by number.
pub(crate) type Net = taupe_stack::net::Net<usize, Waiter>;

/// Identity of a client. Numbers are reused, serials are not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ClientId {
    pub(crate) number: usize,
    pub(crate) serial: u64,
}

/// Client or datagram that waits for a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    Client(ClientId),
    /// A datagram of an association, by its number.
    Datagram(ClientId, u64),
}

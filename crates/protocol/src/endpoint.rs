//! Addresses by which peers are reached.

use core::net::{IpAddr, SocketAddr};

/// Where a peer is reached, and from which of our addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The peer's address and UDP port.
    pub remote: SocketAddr,
    /// The local address that the peer last sent to: answers leave from it.
    pub local: Option<LocalAddress>,
}

/// A local address and the interface a datagram came in by. Both are what the engine's sockets
/// have said of it; other callers can do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// The interface's index.
    pub interface: u32,
}

impl From<SocketAddr> for Endpoint {
    fn from(remote: SocketAddr) -> Self {
        Self {
            remote,
            local: None,
        }
    }
}

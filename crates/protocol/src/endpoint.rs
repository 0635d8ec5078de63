//! Endpoints: UDP addresses of peers.

use core::net::{IpAddr, SocketAddr};

/// Address of a peer, and the local address to reply from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The peer's address and UDP port.
    pub remote: SocketAddr,
    /// The local address that the peer last sent to; replies leave from it.
    pub local: Option<LocalAddress>,
}

/// Local address and interface that a datagram arrived at, as reported by the engine's sockets.
/// Other callers can leave it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalAddress {
    /// The local address.
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

//! Checked views of inner packets (RFC 791, RFC 8200).

use std::net::IpAddr;

/// What cryptokey routing needs to know of an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// Source address: what an incoming packet's peer must be allowed to use.
    pub source: IpAddr,
    /// Destination address: what selects an outgoing packet's peer.
    pub destination: IpAddr,
    /// True length in bytes by the IP header; what follows is padding.
    pub length: usize,
}

/// Why bytes are not an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Neither version 4 nor 6.
    #[error("IP version {0} is neither 4 nor 6")]
    Version(u8),
    /// Fewer bytes than the header, or than the header says the packet has.
    #[error("truncated: {needed} bytes needed, {available} there")]
    Truncated {
        /// Bytes the packet should have.
        needed: usize,
        /// Bytes it has.
        available: usize,
    },
    /// An IPv4 header length below 20 bytes.
    #[error("IPv4 header length of {0} bytes is below 20")]
    HeaderLength(usize),
    /// An IPv4 total length smaller than its header.
    #[error("IPv4 total length {total} is smaller than the header of {header} bytes")]
    TotalLength {
        /// Total length by the header.
        total: usize,
        /// Header length by the header.
        header: usize,
    },
}

/// Source, destination and true length of the packet at the start of `packet`,
/// which may be followed by padding.
///
/// # Errors
///
/// Returns [`Malformed`] when the header contradicts itself or `packet`.
pub fn inner(packet: &[u8]) -> Result<Inner, Malformed> {
    let _ = packet;
    unimplemented!()
}

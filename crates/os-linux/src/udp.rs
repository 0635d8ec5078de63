//! UDP sockets for the encrypted (outer) datagrams.

mod control;
mod group;
mod message;
mod receive;
mod send;
mod socket;

use std::{
    borrow::Cow,
    io,
    net::{IpAddr, SocketAddr},
};

use arrayvec::ArrayVec;
use taupe_packet::ip::Family;

pub use self::{
    group::{SocketGroup, Steering},
    message::receive_prefixes,
    socket::{Socket, SocketParts, read_kernel_version, set_mark},
};

/// Maximum datagrams in one batch (`UDP_MAX_SEGMENTS` before Linux 6.9, `UDP_GRO_CNT_MAX`).
pub const MAX_SEGMENTS: usize = 64;

/// Maximum bytes of a UDP payload: 65,535 less the IPv4 and UDP headers. IPv6 allows 20 more, but
/// one limit splits batches in the same places for both families.
const MAX_PAYLOAD: usize = 65_507;

/// Returns the number of datagrams of `segment` bytes that fit into one send; at least 1.
pub fn max_segments(segment: usize) -> usize {
    (MAX_PAYLOAD / segment.max(1)).clamp(1, MAX_SEGMENTS)
}

/// Bytes reserved for one received batch: the largest batch that the kernel merges, rounded up,
/// plus three cache lines. Without the extra lines, single datagrams at the starts of their slots
/// would all map to the same cache sets.
pub const RECEIVE_LEN: usize = 65_536 + 3 * 64;

/// Maximum batches in one receive.
pub const MAX_RECEIVES: usize = 32;

/// Recommended bytes of a receive buffer.
pub const RECEIVE_BUFFER_LEN: usize = MAX_RECEIVES * RECEIVE_LEN;

/// Settings of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `SO_MARK`; 0 leaves it unset.
    pub mark: u32,
    /// Send batches with `UDP_SEGMENT` if the kernel supports it (Linux 4.18).
    pub gso: bool,
    /// Receive batches with `UDP_GRO` if the kernel does this correctly (Linux 5.12).
    pub gro: bool,
    /// Bytes of each socket buffer; `None` keeps the system's default.
    pub buffers: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mark: 0,
            gso: true,
            gro: true,
            buffers: Some(7 << 20),
        }
    }
}

/// The local end of a path (`IP_PKTINFO`): the address at which a datagram arrived, and from which
/// the answer should be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// Local address.
    pub address: IpAddr,
    /// Interface index; 0 leaves the choice to the routing table.
    pub interface: u32,
}

/// Fields of a datagram's IP header other than the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// The whole TOS or traffic class byte.
    pub tclass: u8,
    /// The TTL or hop limit; `None` leaves the system's default.
    pub hop_limit: Option<u8>,
}

impl From<u8> for Header {
    /// A header with this TOS or traffic class, and the default hop limit.
    fn from(tclass: u8) -> Self {
        Self {
            tclass,
            hop_limit: None,
        }
    }
}

/// A received datagram, or several of one size from one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Offset in the buffer.
    pub start: usize,
    /// Bytes received in all datagrams together; may be 0.
    pub len: usize,
    /// Bytes per datagram; the last may be shorter. Equals `len` for a single
    /// datagram.
    pub segment: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The address and interface it arrived at.
    pub local: Option<PacketInfo>,
    /// ECN field of the outer header, 0 to 3.
    pub ecn: u8,
    /// True if the slot in the buffer was too small; the rest of the datagram is lost.
    pub truncated: bool,
}

/// Result of a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly always the large one, and never kept"
)]
pub enum Receive {
    /// Datagrams, in the order in which they arrived.
    Datagrams(ArrayVec<Received, MAX_RECEIVES>),
    /// [`Socket::shutdown`] was called.
    Stopped,
}

/// Result of a send.
#[derive(Debug)]
#[must_use]
pub struct Sent {
    /// True if the local address no longer worked and datagrams were sent without it: the caller
    /// should forget the address.
    pub local_address_dropped: bool,
    /// The kernel's first error. The remaining datagrams were sent nevertheless if possible.
    pub result: io::Result<()>,
}

impl Sent {
    /// The result of a send that sent nothing.
    pub fn failed(error: io::Error) -> Self {
        Self {
            local_address_dropped: false,
            result: Err(error),
        }
    }
}

/// Error of binding a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// This machine does not support the family; the caller can continue without it.
    #[error("this system has no {0:?} sockets")]
    FamilyUnsupported(Family),
    /// Another socket has the port.
    #[error("UDP port {0} is in use")]
    PortInUse(u16),
    /// Setting `SO_MARK` is not permitted.
    #[error("setting the firewall mark {0:#x} needs CAP_NET_ADMIN")]
    Mark(u32),
    /// Anything else.
    #[error("{what} failed: {source}")]
    Io {
        /// The operation.
        what: Cow<'static, str>,
        /// Its error.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_fits_the_protocol() {
        assert_eq!(max_segments(0), 64);
        assert_eq!(max_segments(100), 64);
        assert_eq!(max_segments(1452), 45);
        assert_eq!(max_segments(32_753), 2);
        assert_eq!(max_segments(32_754), 1);
        assert_eq!(max_segments(65_507), 1);
        // Only IPv6 could carry this payload.
        assert_eq!(max_segments(65_508), 1);
    }
}

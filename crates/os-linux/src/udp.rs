//! Sockets for the outer datagrams.

mod control;
mod message;
mod port;
mod receive;
mod send;
mod socket;

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use arrayvec::ArrayVec;
use taupe_packet::ip::Family;

pub use self::socket::Socket;

/// Datagrams that one batch has at most (`UDP_MAX_SEGMENTS` of Linux before 6.9, `UDP_GRO_CNT_MAX`).
pub const MAX_SEGMENTS: usize = 64;

/// Bytes of a UDP payload at most: 65,535 less the IPv4 and UDP headers. IPv6 could have 20
/// more, but then one batch would be cut in two ways.
const MAX_PAYLOAD: usize = 65_507;

/// Datagrams of `segment` bytes that one send takes; at least 1.
pub fn segments_of_a_send(segment: usize) -> usize {
    (MAX_PAYLOAD / segment.max(1)).clamp(1, MAX_SEGMENTS)
}

/// Bytes that one received batch may have: the largest that the kernel merges,
/// rounded up, and three lines of a processor's cache. Single datagrams, each at
/// the beginning of such a room, would all want the same lines else.
pub const RECEIVE_LEN: usize = 65_536 + 3 * 64;

/// Batches that one receive brings at most.
pub const MAX_RECEIVES: usize = 32;

/// Bytes a receive buffer should have.
pub const RECEIVE_BUFFER_LEN: usize = MAX_RECEIVES * RECEIVE_LEN;

/// How to set a socket up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `SO_MARK`; 0 sets none.
    pub mark: u32,
    /// Send batches with `UDP_SEGMENT` where the kernel has it (Linux 4.18).
    pub gso: bool,
    /// Receive batches with `UDP_GRO` where the kernel does it right
    /// (Linux 5.12).
    pub gro: bool,
    /// Bytes of each socket buffer; `None` leaves the system's default.
    pub buffers: Option<usize>,
    /// What the datagrams begin with that stay with this socket when another is
    /// bound beside it ([`Socket::bind_beside`]); `None` when none will be.
    pub keeps: Option<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mark: 0,
            gso: true,
            gro: true,
            buffers: Some(7 << 20),
            keeps: None,
        }
    }
}

/// The local end of a path: what a datagram came to, and what the answer
/// should come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Local address.
    pub address: IpAddr,
    /// Interface index; 0 leaves the choice to the routing table.
    pub interface: u32,
}

/// What the IP header of a datagram says besides its addresses.
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

/// A datagram, or several of one size from one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Where in the buffer it begins.
    pub start: usize,
    /// Bytes received, all datagrams together; may be 0.
    pub len: usize,
    /// Bytes per datagram; the last may be shorter. Equals `len` for a single
    /// datagram.
    pub segment: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The address and interface it arrived at.
    pub local: Option<Local>,
    /// ECN field of the outer header, 0 to 3.
    pub ecn: u8,
    /// Its part of the buffer was too small, and the rest is lost.
    pub truncated: bool,
}

/// What a receive brought.
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

/// What a send came to.
#[derive(Debug)]
#[must_use]
pub struct Sent {
    /// The local address did not work any more and datagrams went without:
    /// forget it.
    pub local_dropped: bool,
    /// The kernel's first error, after everything that could be sent was.
    pub result: io::Result<()>,
}

impl Sent {
    /// Nothing went out.
    pub fn failed(error: io::Error) -> Self {
        Self {
            local_dropped: false,
            result: Err(error),
        }
    }
}

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// This machine does not speak the family: carry on without it.
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
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_fits_the_protocol() {
        assert_eq!(segments_of_a_send(0), 64);
        assert_eq!(segments_of_a_send(100), 64);
        assert_eq!(segments_of_a_send(1452), 45);
        assert_eq!(segments_of_a_send(32_753), 2);
        assert_eq!(segments_of_a_send(32_754), 1);
        assert_eq!(segments_of_a_send(65_507), 1);
        // Only IPv6 has room for it.
        assert_eq!(segments_of_a_send(65_508), 1);
    }
}

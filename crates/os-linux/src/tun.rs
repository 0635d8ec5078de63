//! The virtual interface to which the system routes packets for the tunnel.

mod device;
mod steering;
#[cfg(test)]
mod tests;

use std::{io, ops::Range};

pub use self::device::Tun;
use taupe_packet::virtio::VirtioHeader;

/// Recommended bytes of a read buffer: the largest IPv6 packet without jumbo option.
pub const READ_BUFFER_LEN: usize = 65_575;

/// Offloads to request from the kernel. By default all are requested; those that the kernel lacks
/// are omitted without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Read TCP super-packets (`TUN_F_TSO4`, `TUN_F_TSO6`).
    pub tso: bool,
    /// Read UDP super-packets (`TUN_F_USO4`, `TUN_F_USO6`; Linux 6.2).
    pub uso: bool,
    /// Write TCP super-packets.
    pub gro_tcp: bool,
    /// Write UDP super-packets (Linux 6.2).
    pub gro_udp: bool,
}

impl Offloads {
    /// No offloads: every packet is read and written separately.
    pub const NONE: Self = Self {
        tso: false,
        uso: false,
        gro_tcp: false,
        gro_udp: false,
    };
}

impl Default for Offloads {
    fn default() -> Self {
        Self {
            tso: true,
            uso: true,
            gro_tcp: true,
            gro_udp: true,
        }
    }
}

/// The queues of an interface, in the order of the kernel's numbers. Each queue is for one reader.
///
/// Drop them together: if one is dropped, the kernel drops the packets that wait in it, and gives
/// its number to the last queue.
#[derive(Debug)]
pub struct Queues {
    /// The first queue.
    pub first: Tun,
    /// The other queues.
    pub others: Vec<Tun>,
    /// The reason why there is one queue although the caller requested several.
    pub refused: Option<OpenError>,
}

impl Queues {
    /// Makes [`Tun::shutdown`] leave the interface in place: the kernel deletes it when the process
    /// ends.
    pub fn leave_deletion_to_exit(&mut self) {
        let others = self.others.iter_mut();
        std::iter::once(&mut self.first)
            .chain(others)
            .for_each(Tun::leave_deletion_to_exit);
    }
}

impl From<Tun> for Queues {
    /// Returns a TUN as the only queue of its interface.
    fn from(tun: Tun) -> Self {
        Self {
            first: tun,
            others: Vec::new(),
            refused: None,
        }
    }
}

/// Result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A packet or super-packet.
    Packet {
        /// Offloads that the reader has to complete; zero on a TUN without `IFF_VNET_HDR`.
        header: VirtioHeader,
        /// The packet's range in the buffer.
        range: Range<usize>,
    },
    /// Another thread called [`Tun::shutdown`], on any queue of the interface.
    Stopped,
    /// The interface was deleted.
    Deleted,
}

/// Error of opening a TUN device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not a valid interface name in Linux.
    #[error("interface name {0:?} must have 1 to 15 bytes, without '/', ':', '%' or blanks")]
    Name(String),
    /// `/dev/net/tun` cannot be opened.
    #[error("cannot open /dev/net/tun: {0}")]
    Device(#[source] io::Error),
    /// Creating interfaces is not permitted.
    #[error("creating interface {0} needs CAP_NET_ADMIN")]
    Permission(String),
    /// The name is taken by an interface that is in use or not a TUN.
    #[error("interface {0} exists, and is in use or is not a TUN")]
    Busy(String),
    /// An existing interface cannot get more queues. This error occurs only in [`Queues::refused`].
    #[error("interface {0} already exists, so it cannot get several queues")]
    Exists(String),
    /// The descriptor is not an attached TUN queue.
    #[error("the descriptor passed in is not an attached TUN device: {0}")]
    NotTun(#[source] io::Error),
    /// The descriptor is in a mode that this crate does not support.
    #[error("the descriptor passed in is a TAP, or prefixes packets (IFF_NO_PI is missing)")]
    Mode,
    /// Anything else.
    #[error("{what} failed: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Error of writing to the interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The interface is down: the packet is lost, later ones may succeed.
    #[error("the interface is down")]
    Down,
    /// The interface was deleted.
    #[error("the interface was deleted")]
    Deleted,
    /// The kernel refused this packet.
    #[error("writing to the TUN failed: {0}")]
    Io(#[from] io::Error),
}

//! The virtual interface that applications' packets come from and go to.

mod device;
#[cfg(test)]
mod tests;

use std::{io, ops::Range};

pub use self::device::Tun;
use taupe_packet::virtio::VirtioHeader;

/// Bytes a read buffer should have: the largest IPv6 packet without jumbo option.
pub const READ_BUFFER_LEN: usize = 65_575;

/// What to ask of the kernel. Everything is on by default; what the kernel
/// lacks is left out without an error.
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
    /// Every packet crosses the kernel alone.
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

/// What a read brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A packet or super-packet.
    Packet {
        /// What the kernel left to do; zero on a TUN without `IFF_VNET_HDR`.
        header: VirtioHeader,
        /// Where in the buffer the packet lies.
        range: Range<usize>,
    },
    /// Another thread called [`Tun::shutdown`].
    Stopped,
    /// The interface was deleted.
    Deleted,
}

/// Why a TUN could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not a name Linux would give an interface.
    #[error("interface name {0:?} must have 1 to 15 bytes, without '/', ':', '%' or blanks")]
    Name(String),
    /// `/dev/net/tun` cannot be opened.
    #[error(
        "cannot open /dev/net/tun: {0}; it takes root, and the kernel's tun module \
         (modprobe tun)"
    )]
    Device(#[source] io::Error),
    /// No right to create interfaces.
    #[error("creating interface {0} needs CAP_NET_ADMIN; run it as root")]
    Permission(String),
    /// The name is taken.
    #[error(
        "interface {0} exists, and is in use or is not a TUN; choose another name, or remove it \
         (ip link del {0})"
    )]
    Busy(String),
    /// A descriptor that is not an attached TUN queue.
    #[error("the descriptor passed in is not an attached TUN device: {0}")]
    NotTun(#[source] io::Error),
    /// A descriptor with a mode this crate does not speak.
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

/// Why a write did not reach the interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The interface is down: the packet is gone, later ones may pass.
    #[error("the interface is down")]
    Down,
    /// The interface was deleted.
    #[error("the interface was deleted")]
    Deleted,
    /// This packet was refused.
    #[error("writing to the TUN failed: {0}")]
    Io(#[from] io::Error),
}

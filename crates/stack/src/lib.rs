#![forbid(unsafe_code)]
//! TCP, UDP and name look-ups through a WireGuard tunnel, with a TCP/IP stack in the process.
//!
//! ```text
//! user ─► stream ─► outgoing ─► tunnel ─► UDP socket
//!         (a stack each)        (protocol)
//! user ─► net::Net::resolve ─► dns ─► outgoing
//!
//! UDP socket ─► tunnel ─► net::receive ─► stream, user or dns
//! ```
//!
//! [`net::Net`] has no thread and no event loop. The protocol and the TCP/IP stacks are state
//! machines without I/O; the user waits with mio and calls [`net::Net`] in turns. All traffic of
//! the user leaves through the tunnel; this crate has no other path out.
//!
//! | file | content |
//! |---|---|
//! | `net.rs`, `settings.rs` | one tunnel with its connections, ports and look-ups |
//! | `stream.rs`, `loss_recovery.rs` | one TCP connection with a stack of its own, and its loss recovery |
//! | `send_space.rs` | sequence numbers that a connection has sent, and checks of ICMP errors |
//! | `receive_space.rs` | the sequence number that a connection expects |
//! | `keepalive.rs` | probes of idle connections |
//! | `half_open.rs` | handshakes of connections that hosts in the tunnel open |
//! | `closing.rs` | connections that their user has closed |
//! | `stack_device.rs`, `buffers.rs` | the stack's interface, and the memory of its buffers |
//! | `dns.rs`, `tcp_query.rs` | name look-ups over UDP and TCP |
//! | `packet.rs`, `outgoing.rs` | inner packets |
//! | `reset.rs` | resets for segments without a connection |
//! | `tunnel.rs`, `handshakes.rs` | WireGuard, its UDP sockets, and the queue of handshake messages |
//! | `address.rs`, `failure.rs` | destinations, reasons for failed connections |
//! | `limits.rs` | timeouts and limits that all users share |

pub mod address;
mod buffers;
pub mod closing;
mod dns;
pub mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod half_open;
mod handshakes;
pub mod keepalive;
pub mod limits;
mod loss_recovery;
pub mod net;
mod outgoing;
pub mod packet;
mod receive_space;
mod reset;
mod send_space;
pub mod settings;
mod stack_device;
pub mod stream;
mod tcp_query;
mod tunnel;
pub mod warning;

use std::io;
use std::net::IpAddr;
use taupe_protocol::{Notice, UpdateError};
use taupe_runtime::pinned_pq::PinnedPeersError;
use taupe_runtime::services::PrepareError;

pub use smoltcp::socket::tcp;

/// The smallest MTU of a tunnel, in bytes: every IPv4 host accepts packets of this length (RFC
/// 791).
pub const MIN_MTU: usize = 576;

/// The default MTU of a tunnel, in bytes: an Ethernet frame's 1500 less WireGuard's overhead over
/// IPv6, as for an interface.
pub const DEFAULT_MTU: usize = 1420;

/// Callback that receives notices about peers.
pub type NoticeHandler = Box<dyn Fn(Notice) + Send>;

/// Reason why a tunnel could not be opened. All sockets are closed again.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration has no tunnel address, so packets would have no source.
    #[error("the configuration has no Address, so packets would have no source")]
    NoAddress,
    /// No host can have this tunnel address.
    #[error("Address {0} cannot be the address of a host")]
    NotAHost(IpAddr),
    /// The MTU is too small.
    #[error("MTU {0} is too small: the least is {MIN_MTU}")]
    Mtu(usize),
    /// The tunnel's UDP port is in use.
    #[error("UDP port {0} (ListenPort) is in use")]
    PortTaken(u16),
    /// The tunnel's UDP socket could not be created.
    #[error("cannot create a UDP socket: {0}")]
    Socket(#[source] io::Error),
    /// The system's event queue could not be used.
    #[error("cannot wait for events: {0}")]
    Events(#[source] io::Error),
    /// There are too many peers.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The record of pinned post-quantum peers could not be read.
    #[error(transparent)]
    PinnedPeers(#[from] PinnedPeersError),
}

impl From<PrepareError> for OpenError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Update(error) => Self::Update(error),
            PrepareError::PinnedPeers(error) => Self::PinnedPeers(error),
        }
    }
}

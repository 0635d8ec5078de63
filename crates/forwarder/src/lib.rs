#![forbid(unsafe_code)]
//! The path of packets between a virtual interface and UDP sockets, through the protocol.
//!
//! Each source of packets has a thread. The interface's thread seals packets and sends them. A
//! socket's thread opens datagrams and passes packets to the interface. The thread that owns the
//! [`Forwarder`] handles handshakes, timers and configuration. The other threads notify it of work.
//! [`device::Device`] is such an owner.

pub mod device;
mod forwarder;
mod socket;

pub use forwarder::Forwarder;
pub use socket::{DatagramSocket, FamilySocket, Interface, UdpSockets};

//! The transparent client on frames at the network card, for systems where nothing but
//! a packet filter beneath the TCP/IP stack can be asked for: no programs in the kernel, no
//! TUN, no routes.
//!
//! ```text
//! system ─ sent ──► ours? ─ link? ─ owner ─ rules ─► translate ─ seal ─ datagram ──► card
//!                     │ passes │ passes     │ passes, or is dropped or refused
//! system ◄─ frame ─ translate ─ open ◄─ to our UDP port? ◄─────────── received ──── card
//!                                          │ passes, or is dropped
//! ```
//!
//! [`Pipeline`] is all of that without I/O: a frame and the time go in, and what is to be done
//! with it comes out. It cannot change a frame that passes, since it is only lent. A
//! [`PacketTap`] is where frames come from and go to, [`Owners`] tells which process has
//! which socket, and whoever drives the two gives the time.
//!
//! **The way to an endpoint** is the system's business: routes, neighbours, VLANs. So the first
//! datagram to an endpoint is given to a UDP socket ([`Output::Datagram`]), and the frame in which
//! the system then sends it is looked at as it passes: its adapter, its addresses and its
//! link header are those of all that follow, which are made here ([`Output::Inject`]), for
//! half a minute or until the adapters change; then the system is asked again.
//!
//! **Fails closed.** A packet of a chosen application is sealed, waits for a session (128 of
//! each peer at most), is refused or is dropped; there is no other way for it. One whose
//! owner is not known yet waits for 20 ms, and until then for nothing else: the system may let
//! a socket's first packet out before it lists the socket. One from an address that no adapter has is
//! forwarded only if the adapters were listed while it waited. While the tunnel is down, what
//! is chosen is refused ([`Pipeline::close`]).
//!
//! | frame | what is read of it |
//! |---|---|
//! | Ethernet II, with up to two VLAN tags (802.1Q, 802.1ad) | the IPv4 or IPv6 packet |
//! | of an adapter without Ethernet ([`Medium::Ip`]) | the packet that it is |
//! | Ethernet with IP behind more tags, or behind LLC | nothing: it is dropped where it is sent |
//! | of an adapter that has neither ([`Medium::Unknown`]) | nothing: it is dropped |
//! | ARP, LLC, PPPoE and all else | nothing: it passes |
//!
//! Known not to hold: the process of a socket that is closed, or ended, before the socket was
//! ever on a list that was read cannot be told any more, and is taken for the system. What is sent by a driver
//! of its own beneath this one is not seen.

// What a driver needs is in `ndisapi`.
#![deny(unsafe_code)]

mod checksums;
mod datagram;
mod fragments;
mod link;
#[cfg(windows)]
#[expect(unsafe_code)]
pub mod ndisapi;
mod owners;
mod packet;
mod pipeline;
mod questions;
mod recent;
mod rules;
mod tap;
mod tunnel;
mod waiting;
mod ways;

pub use owners::{Holder, Owners, Process, Protocol, Socket};
pub use pipeline::{Causes, Dropped, Output, Pipeline, Settings};
pub use rules::{Rules, Unsuitable};
pub use tap::{
    Adapter, Adapters, Event, Frame, Injection, Medium, PacketTap, TapError, Towards, Verdict,
};

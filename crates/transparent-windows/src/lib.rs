//! Transparent mode on frames at the network card. It serves systems that offer only a packet
//! filter below the TCP/IP stack: no programs in the kernel, no TUN, no routes.
//!
//! ```text
//! system ─ sent ──► ours? ─ link? ─ owner ─ rules ─► translate ─ seal ─ datagram ──► card
//!                     │ passes │ passes     │ passes, or is dropped or refused
//! system ◄─ frame ─ translate ─ open ◄─ to our UDP port? ◄─────────── received ──── card
//!                                          │ passes, or is dropped
//! ```
//!
//! [`Pipeline`] does all of that without I/O: it takes a frame and the time, and returns what to do
//! with the frame. It only borrows a frame that passes, so it cannot change it. A [`PacketTap`]
//! delivers and sends frames. [`Owners`] finds the process that owns a socket. The driver of the two
//! supplies the time.
//!
//! **The path to an endpoint** depends on the system's routes, neighbours and VLANs. The pipeline
//! therefore gives the first datagram to an endpoint to a UDP socket ([`Output::Datagram`]), and
//! observes the frame in which the system sends it. It then builds the following frames itself,
//! with the same adapter, addresses and link header ([`Output::Inject`]). After half a minute, or
//! when the adapters change, it uses the socket again.
//!
//! **Fail closed.** A packet of a selected application is sealed, waits for a session (at most 128
//! per peer), is refused, or is dropped. A packet whose owner is unknown waits for 20 ms, since the
//! system may send a socket's first packet before it lists the socket. A packet from an address
//! that no adapter has is forwarded only if the adapters were listed while it waited. While the
//! tunnel is down, packets of selected applications are refused ([`Pipeline::close`]).
//!
//! | frame | content that is read |
//! |---|---|
//! | Ethernet II, with up to two VLAN tags (802.1Q, 802.1ad) | the IPv4 or IPv6 packet |
//! | of an adapter without Ethernet ([`Medium::Ip`]) | the packet, which is the whole frame |
//! | Ethernet with IP after more tags, or after LLC | nothing: an outgoing frame is dropped |
//! | of any other adapter ([`Medium::Unknown`]) | nothing: the frame is dropped |
//! | ARP, LLC, PPPoE and all others | nothing: the frame passes |
//!
//! Known limits: if a socket is closed, or its process ends, before the socket appears in a list,
//! its owner cannot be determined, and its packets count as the system's. Packets that another
//! driver sends below this one are not seen.

// `ndisapi` calls a driver.
#![deny(unsafe_code)]

mod cache;
mod checksums;
mod datagram;
mod dns_query;
mod link;
#[cfg(windows)]
#[expect(unsafe_code)]
pub mod ndisapi;
mod owners;
mod packet;
mod paths;
mod pipeline;
mod rules;
mod tap;
mod tunnel;
mod waiting;

pub use owners::{Holder, Owners, Process, Protocol, Socket};
pub use pipeline::{FrameDropReason, FrameDrops, Output, Pipeline, Settings};
pub use rules::{Rules, UnsuitableRule};
pub use tap::{
    Adapter, Adapters, Event, Frame, Injection, Medium, PacketTap, TapError, Towards, Verdict,
};

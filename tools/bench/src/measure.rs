//! What is measured of a session, and by which program.
//!
//! Each measurement takes a [`Session`](crate::session::Session) and returns what
//! it found as a type of its own; [`metrics`] names all of it for a report. Readers of
//! other programs' output are pure functions: what they do not fully understand is an
//! error, never a figure.
//!
//! - [`iperf`] and [`qperf`] run these programs against the session's
//!   [`Servers`](servers::Servers),
//! - [`latency`] and [`packets`] send datagrams themselves, [`connections`] connect,
//! - [`cost`] tells what any of them took of the machine, [`memory`] what the programs
//!   hold,
//! - [`stages`] tells what each step on the way of a packet takes,
//! - [`peers`] measures a server before and after it has many peers, [`flood`] one that
//!   strangers send handshakes.

pub mod connections;
pub mod cost;
mod datagrams;
pub mod flood;
pub mod iperf;
pub mod latency;
pub mod memory;
pub mod metrics;
pub mod packets;
pub mod peers;
mod proc;
pub mod qperf;
pub mod servers;
pub mod stages;
mod system_calls;

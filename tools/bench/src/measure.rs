//! Measurements of a session, one module for each tool or quantity.
//!
//! Each measurement takes a [`Session`](crate::session::Session) and returns a type of its own;
//! [`metrics`] turns these into the metrics of a report. Parsers of other programs' output are pure
//! functions: output that they do not fully understand is an error, never a figure.
//!
//! - [`iperf`] and [`qperf`] run these programs against the session's
//!   [`Servers`](servers::Servers),
//! - [`latency`] and [`packets`] send datagrams themselves, [`connections`] opens TCP connections,
//! - [`cost`] measures the processor time of another measurement, [`memory`] the memory of the
//!   programs,
//! - [`stages`] measures each step of a packet's path,
//! - [`load`] measures a transfer with the cores that it keeps busy, [`order`] counts what TCP notices of reordered packets,
//! - [`gateway`] measures a server with several clients at once,
//! - [`peers`] measures a server before and after it gets many peers, [`flood`] a server that
//!   receives handshakes from strangers,
//! - [`commands`] measures Taupe's commands.

pub mod commands;
pub mod connections;
pub mod cost;
mod datagrams;
pub mod flood;
pub mod gateway;
pub mod iperf;
pub mod latency;
pub mod load;
pub mod memory;
pub mod metrics;
pub mod order;
pub mod packets;
pub mod peers;
mod proc;
pub mod qperf;
pub mod servers;
pub mod stages;
mod system_calls;

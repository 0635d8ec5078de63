#![forbid(unsafe_code)]
//! System tests of a WireGuard program: real processes in real network
//! namespaces, against the implementations that others run.
//!
//! The layers, from the ground up:
//!
//! - [`sandbox`] runs every test in a process of its own with private PID,
//!   mount and network namespaces, so that nothing it makes outlives it;
//! - [`host`] makes machines of namespaces and wires them together,
//!   [`process`] runs programs there, [`snmp`] reads what their kernel counts;
//! - [`peers`] knows how each implementation is installed, started and driven,
//!   [`uapi`] speaks to one without `wg`;
//! - [`interop`] puts two of them through what they must do together;
//! - [`server`] is the other side of tests of one client;
//! - [`demo`] shows transparent mode, [`tutorial`] follows the post-quantum tutorial;
//! - [`traffic`] sends things through a tunnel and checks what arrives,
//!   [`capture`] looks at what was on the wire.
//!
//! Everything here is a test instrument. It calls `ip`, `wg`, `ping` and
//! friends freely, and needs root. The packages it takes are in
//! `debian-packages.txt`.

pub mod capture;
pub mod console;
pub mod demo;
pub mod error;
pub mod guest;
pub mod host;
pub mod interop;
pub mod packages;
pub mod peers;
pub mod process;
pub mod sandbox;
pub mod server;
pub mod snmp;
pub mod traffic;
pub mod tutorial;
pub mod uapi;

pub use error::{Error, Result};

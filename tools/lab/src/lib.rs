#![forbid(unsafe_code)]
//! System tests of a WireGuard program: real processes in real network namespaces, with the
//! implementations that other people run.
//!
//! The layers, from the bottom up:
//!
//! - [`sandbox`] runs every test in a process of its own with private PID, mount and network
//!   namespaces, so that a test leaves nothing behind;
//! - [`host`] makes machines of namespaces and connects them, [`process`] runs programs there,
//!   [`snmp`] reads their kernel's counters, [`cgroup`] makes room for a systemd in a sandbox;
//! - [`peers`] installs, starts and configures each implementation, [`uapi`] talks to one without
//!   `wg`;
//! - [`interop`] tests that two implementations interoperate;
//! - [`server`] is a WireGuard server for tests of one client;
//! - [`demo`] demonstrates transparent mode, [`recording`] records its lines, [`tutorial`] follows the
//!   post-quantum tutorial;
//! - [`traffic`] sends data through a tunnel and checks that it arrives, [`capture`] captures
//!   packets on the wire, [`servers`] and [`surroundings`] complete a machine: web pages, names, an
//!   `/etc` of its own;
//! - [`documents`] reads the commands of the documentation.
//!
//! The whole crate is a test tool: it calls `ip`, `wg`, `ping` and similar programs, and needs
//! root. The required packages are listed in `debian-packages.txt`.

pub mod cache;
pub mod capture;
pub mod cgroup;
pub mod console;
pub mod demo;
pub mod documents;
pub mod error;
pub mod guest;
pub mod host;
pub mod interop;
pub mod packages;
pub mod peers;
pub mod process;
pub mod recording;
pub mod sandbox;
pub mod server;
pub mod servers;
pub mod snmp;
pub mod surroundings;
pub mod traffic;
pub mod tutorial;
pub mod uapi;

pub use error::{Error, Result};

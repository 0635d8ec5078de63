//! Safe wrappers for what Linux makes unsafe or easy to get wrong. Each names the fact about the
//! kernel that it rests on. Nothing here decides anything; that is its callers' part.
//!
//! [`tun`] and [`udp`] carry batches of packets; [`netlink`] configures links, addresses, routes,
//! rules and nf_tables, and [`watch`] tells when others do. The rest is about processes and what
//! they have: namespaces, mounts, descriptors, signals, memory, their scheduling.
//!
//! System calls that `rustix` does not wrap are in `ioctl`, `option` and `udp::message`.

#![cfg(target_os = "linux")]

pub mod descriptor;
pub mod interface;
pub mod memory;
pub mod mounts;
pub mod namespace;
pub mod netlink;
pub mod process;
pub mod run_directory;
pub mod schedule;
pub mod security;
pub mod signals;
pub mod tun;
pub mod udp;
pub mod watch;

mod ioctl;
mod option;
mod rtnetlink;

//! Safe wrappers for the parts of Linux that need `unsafe` or are easy to get wrong. Each wrapper
//! documents the kernel behaviour that it relies on. Policy belongs in the callers.
//!
//! [`tun`] and [`udp`] transfer batches of packets; [`packet_socket`] captures them. [`netlink`] configures links, addresses,
//! routes, rules and nf_tables, and [`watch`] reports changes to them. The other modules deal with
//! processes: namespaces, mounts, descriptors, signals, memory and scheduling.
//!
//! System calls that `rustix` does not wrap are in `ioctl`, [`socket_option`], `udp::message` and
//! `tun::steering`.

#![cfg(target_os = "linux")]

pub mod descriptor;
#[cfg(feature = "testing")]
pub mod harmless_call;
pub mod interface;
pub mod memory;
pub mod message_socket;
pub mod mounts;
pub mod namespace;
pub mod netlink;
pub mod own_program;
pub mod packet_process;
pub mod packet_socket;
pub mod process;
pub mod seccomp;
pub mod security;
pub mod signals;
pub mod socket_option;
pub mod tun;
pub mod udp;
pub mod users;
pub mod watch;

mod ioctl;

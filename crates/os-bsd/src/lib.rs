//! Messages and structures that the kernels of FreeBSD and macOS exchange with programs, as bytes.
//!
//! The crate makes no system calls. Both systems' layouts exist on every system, and so their tests
//! run on Linux. Functions take a [`System`] where the two differ.
//!
//! [`routing`] encodes and decodes messages of routing sockets and the tables that `sysctl` returns.
//! [`interface`] has `ioctl` requests about interfaces, [`tun`] the requests and packet headers of
//! TUN devices, [`kernel_control`] the structures that open a utun device, [`socket_option`] the
//! numbers of socket options, and [`device_name`] the permitted names of devices. [`layout`] is the
//! table of all sizes, offsets and constants. A test compiles it against the systems' own headers.
//!
//! Numbers are little-endian and addresses have 64 bits: all layouts are those of x86-64 and
//! AArch64, which are equal.

#![forbid(unsafe_code)]

pub mod device_name;
pub mod interface;
pub mod kernel_control;
pub mod layout;
pub mod routing;
pub mod socket_address;
pub mod socket_option;
pub mod tun;

mod bytes;
mod system;

pub use system::System;

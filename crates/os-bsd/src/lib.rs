//! Messages and structures that the kernels of FreeBSD and macOS exchange with programs, as bytes, and
//! on these systems the calls that do so.
//!
//! Both systems' layouts exist on every system, and so their tests run on Linux. Functions take a
//! [`System`] where the two differ. The calls are `tun::Tun`, `udp`, `routing::RoutingSocket`,
//! `ioctl`, `directory_watch` and `descriptor`. They are compiled and linked in the tests, and have
//! run nowhere yet.
//!
//! [`routing`] encodes and decodes messages of routing sockets and the tables that `sysctl` returns.
//! [`interface`] has `ioctl` requests about interfaces, [`tun`] the requests and packet headers of
//! TUN devices, [`kernel_control`] the structures that open a utun device, [`socket_option`] the
//! numbers of socket options, [`endpoint`] and [`control_message`] the addresses of datagrams,
//! [`outer_path`] restrictions that keep a tunnel's datagrams off the tunnel, and [`device_name`] the
//! permitted names of devices. [`layout`] is the table of all sizes, offsets and constants. A test
//! compiles it against the systems' own headers.
//!
//! Numbers are little-endian and addresses have 64 bits: all layouts are those of x86-64 and
//! AArch64, which are equal.

#![deny(unsafe_code)]

pub mod control_message;
#[cfg(any(target_os = "freebsd", target_os = "macos"))]
pub mod descriptor;
pub mod device_name;
#[cfg(any(target_os = "freebsd", target_os = "macos"))]
pub mod directory_watch;
pub mod endpoint;
pub mod interface;
pub mod kernel_control;
pub mod layout;
pub mod outer_path;
pub mod routing;
pub mod socket_address;
pub mod socket_option;
pub mod tun;
#[cfg(any(target_os = "freebsd", target_os = "macos"))]
pub mod udp;

mod bytes;
#[cfg(any(target_os = "freebsd", target_os = "macos"))]
pub mod ioctl;
mod system;
#[cfg(any(target_os = "freebsd", target_os = "macos"))]
mod wait;

pub use system::System;

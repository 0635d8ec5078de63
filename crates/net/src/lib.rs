//! Moves batches of packets between the kernel and the engine.
//!
//! The unit of work is the batch: one contiguous buffer and a segment size. A
//! TUN read hands over one super-packet of up to 64 KiB, which [`split`] turns
//! into segments; a UDP receive hands over up to 64 datagrams of one size,
//! whose decrypted contents [`merge`] turns back into super-packets. In steady
//! state nothing here allocates.
//!
//! This crate knows no keys and no peers. [`ip`], [`checksum`], [`split`],
//! [`merge`], [`ecn`] and [`icmp`] are portable and free of I/O; [`tun`],
//! [`udp`] and [`link`] name what an operating system has to provide, and the
//! module behind the `imp` alias provides it. Beside the way of the packets,
//! [`system`] is how the tools configure the network.

pub mod checksum;
pub mod ecn;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod icmp;
pub mod ip;
#[cfg(target_os = "linux")]
pub mod link;
pub mod merge;
pub mod split;
#[cfg(target_os = "linux")]
pub mod system;
#[cfg(test)]
mod testing;
#[cfg(target_os = "linux")]
pub mod tun;
#[cfg(target_os = "linux")]
pub mod udp;
pub mod virtio;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as imp;

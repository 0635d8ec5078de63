//! IP packets as bytes, without I/O.
//!
//! The unit of work is the batch: one contiguous buffer and a segment size. A TUN read returns one
//! super-packet of up to 64 KiB, which [`split`] divides into segments. A UDP receive returns up to
//! 64 datagrams of one size, and [`merge`] combines their decrypted contents into super-packets. In
//! steady state this crate does not allocate.
//!
//! [`queue`] is a fair queue for packets that wait to be sent.
//!
//! [`ip`] parses headers; [`checksum`], [`ecn`] and [`icmp`] implement the mechanisms of these
//! names. [`virtio`] is the header before a packet on a TUN, and [`tap`] is the interface for code
//! that changes packets between a TUN and a tunnel.

#![deny(unsafe_code)]

pub mod checksum;
pub mod ecn;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod icmp;
pub mod ip;
pub mod merge;
pub mod queue;
pub mod split;
pub mod tap;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod virtio;

//! IP packets as bytes, without I/O.
//!
//! The unit of work is the batch: one contiguous buffer and a segment size. A
//! TUN read hands over one super-packet of up to 64 KiB, which [`split`] turns
//! into segments; a UDP receive hands over up to 64 datagrams of one size,
//! whose decrypted contents [`merge`] turns back into super-packets. In steady
//! state nothing here allocates.
//!
//! [`ip`] reads headers, [`checksum`], [`ecn`] and [`icmp`] are what their names say,
//! [`virtio`] is the header before a packet of a TUN, and [`tap`] is what may change packets
//! between a TUN and a tunnel.

#![deny(unsafe_code)]

pub mod checksum;
pub mod ecn;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod icmp;
pub mod ip;
pub mod merge;
pub mod split;
pub mod tap;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod virtio;

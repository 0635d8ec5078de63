//! Cuts a super-packet read from the TUN into packets with complete headers
//! and checksums.

use crate::virtio::VirtioHeader;

/// A packet from the TUN, ready to be written out segment by segment.
///
/// A packet that needs no cutting is a `Split` of one segment.
#[derive(Debug)]
pub struct Split<'a> {
    packet: &'a [u8],
}

/// Why a packet cannot be split as its virtio header asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// A segmentation type this crate never asks the kernel for.
    #[error("virtio GSO type {0:#04x} is not supported")]
    GsoType(u8),
}

impl<'a> Split<'a> {
    /// Checks `header` against `packet`.
    ///
    /// # Errors
    ///
    /// Returns [`SplitError`] when the two contradict each other; such a
    /// packet is to be dropped.
    pub fn new(header: VirtioHeader, packet: &'a [u8]) -> Result<Self, SplitError> {
        let _ = (header, packet);
        unimplemented!()
    }

    /// Segments, at least 1. A hostile `gso_size` of 1 makes it tens of
    /// thousands: writers proceed in bounded steps.
    pub fn count(&self) -> usize {
        unimplemented!()
    }

    /// Length in bytes of every segment but the last, headers included.
    pub fn segment_len(&self) -> usize {
        unimplemented!()
    }

    /// Length in bytes of the last segment, headers included.
    pub fn last_len(&self) -> usize {
        self.packet.len()
    }

    /// Writes segment `i` to the start of `dst` and returns its length.
    ///
    /// # Panics
    ///
    /// When `i` is not below [`Split::count`] or `dst` is shorter than the
    /// segment.
    pub fn write(&self, i: usize, dst: &mut [u8]) -> usize {
        let _ = (i, dst);
        unimplemented!()
    }
}

//! Merges consecutive segments of one flow into super-packets for the TUN.

use std::ops::Range;

use crate::virtio::VirtioHeader;

/// Which protocols may be merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalesce {
    /// TCP segments.
    pub tcp: bool,
    /// UDP datagrams; the kernel takes them since Linux 6.2.
    pub udp: bool,
}

/// Turns batches of packets into writes; reusable, so that it allocates only
/// until it has seen its largest batch.
#[derive(Debug, Default)]
pub struct Merger {}

impl Merger {
    /// An empty merger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Groups `packets`, ranges of `buffer` that do not overlap and hold one
    /// IP packet each without padding, into writes.
    ///
    /// Packets of one flow keep their order, and writes come in the order of
    /// their first packets. What cannot be merged comes through unchanged.
    /// Headers of merged packets are edited in place. A range outside `buffer`
    /// is skipped.
    pub fn merge<'a>(
        &'a mut self,
        buffer: &'a mut [u8],
        packets: &[Range<usize>],
        coalesce: Coalesce,
    ) -> Merged<'a> {
        let _ = (packets, coalesce);
        Merged {
            merger: self,
            buffer,
        }
    }
}

/// The writes of one batch, in order.
#[derive(Debug)]
pub struct Merged<'a> {
    merger: &'a Merger,
    buffer: &'a [u8],
}

impl<'a> Iterator for Merged<'a> {
    type Item = TunWrite<'a>;

    fn next(&mut self) -> Option<TunWrite<'a>> {
        let _ = (self.merger, self.buffer);
        unimplemented!()
    }
}

/// One packet or super-packet for [`crate::tun::Tun::write`].
#[derive(Clone, Debug)]
pub struct TunWrite<'a> {
    header: VirtioHeader,
    first: &'a [u8],
}

impl<'a> TunWrite<'a> {
    /// One packet as it is, for example an ICMP answer.
    pub fn single(packet: &'a [u8]) -> Self {
        Self {
            header: VirtioHeader::default(),
            first: packet,
        }
    }

    /// The header to precede the packet.
    pub fn header(&self) -> VirtioHeader {
        self.header
    }

    /// Packets in this write, at least 1.
    pub fn count(&self) -> usize {
        unimplemented!()
    }

    /// The bytes after the virtio header, at most 65,535 in total.
    pub fn slices(&self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(self.first)
    }
}

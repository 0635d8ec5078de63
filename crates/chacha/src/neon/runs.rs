//! The blocks of a batch, in the order of packets, divided into passes.

use super::lanes::{LANES, LaneInputs};
use crate::key::nonce;
use crate::packet::{MAX_TEXT_LEN, Packet, TAG_LEN, erase_beyond};
use core::ops::Range;

/// Bytes of a ChaCha20 block.
pub(super) const BLOCK_LEN: usize = 64;

/// Consecutive blocks of a packet that a pass makes.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    /// Index of the packet in its batch.
    pub(super) place: usize,
    /// Number of the first block: of block 0 the first half is the one-time keys, and the text
    /// begins with block 1 (RFC 8439 §2.8).
    pub(super) first: usize,
    /// The lane that has the first block.
    pub(super) lane: usize,
    count: usize,
    /// True if the last block of the packet is among them.
    pub(super) is_last: bool,
}

impl Run {
    /// The part of the text that the blocks are for.
    #[inline]
    pub(super) fn range(&self, text_len: usize) -> Range<usize> {
        let bytes = |blocks: usize| (blocks.saturating_sub(1) * BLOCK_LEN).min(text_len);
        bytes(self.first)..bytes(self.first + self.count)
    }

    /// The lane of the first block that is for text.
    #[inline]
    pub(super) fn text_lane(&self) -> usize {
        self.lane + usize::from(self.first == 0)
    }
}

/// The runs of a pass.
#[derive(Default)]
pub(super) struct Runs {
    runs: [Run; LANES],
    count: usize,
    /// Blocks of all runs.
    pub(super) blocks: usize,
}

impl Runs {
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().take(self.count)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Index of the last run.
    #[inline]
    pub(super) fn last(&self) -> usize {
        self.count.saturating_sub(1)
    }
}

/// The next block of a batch.
#[derive(Default)]
pub(super) struct Plan {
    place: usize,
    number: usize,
}

impl Plan {
    /// The runs of the next pass, and their blocks. There are none after the last packet.
    ///
    /// Erases packets that are too long.
    pub(super) fn next(&mut self, packets: &mut [Packet<'_>], blocks: &mut LaneInputs) -> Runs {
        let mut runs = Runs::default();
        while runs.blocks < LANES
            && let Some(packet) = packets.get_mut(self.place)
        {
            if packet.data.len() < TAG_LEN || erase_beyond(packet, MAX_TEXT_LEN) {
                self.place += 1;
                continue;
            }
            let all = 1 + (packet.data.len() - TAG_LEN).div_ceil(BLOCK_LEN);
            let count = (all - self.number).min(LANES - runs.blocks);
            let nonce = nonce(packet.counter);
            for index in 0..count {
                blocks.set(runs.blocks + index, (self.number + index) as u32, nonce);
            }
            let is_last = self.number + count == all;
            runs.runs[runs.count] = Run {
                place: self.place,
                first: self.number,
                lane: runs.blocks,
                count,
                is_last,
            };
            runs.count += 1;
            runs.blocks += count;
            if is_last {
                self.place += 1;
                self.number = 0;
            } else {
                self.number += count;
            }
        }
        runs
    }
}

//! ChaCha20-Poly1305 (RFC 8439) over a batch of packets, with AVX-512.
//!
//! A packet by itself has its blocks of ChaCha20 side by side (`single`). Up to eight packets
//! go together: ChaCha20 makes sixteen blocks at a time, one
//! in each lane of 32 bits, a few of each packet; Poly1305 has a lane of 64 bits
//! for each packet, or two where there are at most four packets. So nothing is
//! wasted on a packet that does not fill sixteen blocks, and Poly1305 needs no
//! powers beyond the eighth.
//!
//! It needs AVX-512 F and BW, IFMA for the multiplications of Poly1305 and VBMI2
//! for its shifts: Ice Lake, Zen 4 and later. Processors with AVX-512 F alone
//! (Skylake-X), or without AVX-512, use `avx2`.
//!
//! No secret decides on a branch or an address; lengths and counters, which are
//! sent in the clear, do. All groups use one place in memory for their keys and
//! key stream, one group after the other, and the last one overwrites it.
//! Registers are not cleared, nor are values that the compiler spills to the
//! stack. Miri does not know these instructions.
#![allow(
    unsafe_code,
    reason = "vector instructions: loads, stores, and calls after detection"
)]

mod chacha20;
mod group;
mod poly1305;
mod single;
#[cfg(test)]
mod tests;
mod vector;

use self::group::{Group, Lane, Place};
use crate::Grouping;
use crate::avx2::Avx2Key;
use crate::key::Words;
use crate::packet::{MAX_TEXT_LEN, Packet, TAG_LEN, erase_beyond, split_tag};
use std::is_x86_feature_detected;

/// Packets that are sorted and grouped at a time.
const RUN: usize = 64;

/// The longest text that goes with others, in bytes: all that UDP can carry.
const LONGEST: usize = 1 << 16;

/// A ChaCha20-Poly1305 key for batches, with AVX-512. It is zeroised on drop.
pub struct Avx512Key {
    words: Words,
    grouping: Grouping,
}

impl Avx512Key {
    /// Returns whether this processor has the instructions.
    #[must_use]
    pub fn is_supported() -> bool {
        Avx2Key::is_supported()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512ifma")
            && is_x86_feature_detected!("avx512vbmi2")
    }

    /// Returns `None` on a processor without the instructions.
    #[must_use]
    pub fn new(key: &[u8; 32], grouping: Grouping) -> Option<Self> {
        Self::is_supported().then(|| Self {
            words: Words::new(key),
            grouping,
        })
    }

    /// Encrypts every packet in place, as [`Avx2Key::seal`] does.
    pub fn seal(&self, packets: &mut [Packet<'_>]) {
        if let Some(packet) = self.only(packets) {
            self.packet::<false>(packet.counter, packet.data);
            return;
        }
        for packets in packets.chunks_mut(RUN) {
            self.run(packets, Work::Seal);
        }
    }

    /// Decrypts every packet in place and says which are authentic, as [`Avx2Key::open`] does.
    pub fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        authentic.fill(false);
        if let (Some(packet), Some(verdict)) = (self.only(packets), authentic.first_mut()) {
            *verdict = self.packet::<true>(packet.counter, packet.data);
            return;
        }
        for (packets, flags) in packets.chunks_mut(RUN).zip(authentic.chunks_mut(RUN)) {
            let count = packets.len().min(flags.len());
            self.run(&mut packets[..count], Work::Open(flags));
        }
    }

    fn is_always_grouped(&self) -> bool {
        self.grouping == Grouping::Always
    }

    /// Takes packets from the longest on, those of like length together.
    fn run(&self, packets: &mut [Packet<'_>], mut work: Work<'_>) {
        let mut entries = [const { Entry::NONE }; RUN];
        let mut place = Place::new();
        let mut grouped = false;
        let mut len = 0;
        for (index, packet) in packets.iter_mut().enumerate() {
            let is_beyond = erase_beyond(packet, MAX_TEXT_LEN);
            let Packet { counter, data } = packet;
            if !is_beyond && data.len() >= TAG_LEN {
                entries[len] = Entry {
                    index,
                    counter: *counter,
                    data: Some(data),
                };
                len += 1;
            }
        }
        let mut entries = &mut entries[..len];
        entries.sort_unstable_by_key(|entry| core::cmp::Reverse(entry.text_len()));
        while !entries.is_empty() {
            let (width, count) = self.choose(entries);
            let now = entries
                .split_off_mut(..count)
                .expect("no more than there are");
            grouped |= width.packets() > 1;
            match width {
                Width::Eight => self.group::<2>(now, &mut place, &mut work),
                Width::Four => self.group::<4>(now, &mut place, &mut work),
                Width::One => self.single(now, &mut work),
            }
        }
        if grouped {
            // SAFETY: there is no key without the instructions.
            unsafe { place.wipe() };
        }
    }

    fn group<const N: usize>(
        &self,
        entries: &mut [Entry<'_>],
        place: &mut Place,
        work: &mut Work<'_>,
    ) {
        let mut left = entries.iter_mut();
        let lanes = core::array::from_fn(|_| {
            let lane = left.next().and_then(|entry| {
                let (text, tag) = split_tag(entry.data.take()?)?;
                Some(Lane::new(entry.counter, text, tag))
            });
            lane.unwrap_or_default()
        });
        match work {
            // SAFETY: there is no key without the instructions.
            Work::Seal => unsafe { Group::<N>::seal(&self.words.0, lanes, place) },
            Work::Open(flags) => {
                // SAFETY: as above.
                let authentic = unsafe { Group::<N>::open(&self.words.0, lanes, place) };
                for (entry, authentic) in entries.iter().zip(authentic) {
                    flags[entry.index] = authentic;
                }
            }
        }
    }

    fn single(&self, entries: &mut [Entry<'_>], work: &mut Work<'_>) {
        for entry in entries {
            let Some(data) = entry.data.take() else {
                continue;
            };
            match work {
                Work::Seal => {
                    self.packet::<false>(entry.counter, data);
                }
                Work::Open(flags) => {
                    flags[entry.index] = self.packet::<true>(entry.counter, data);
                }
            }
        }
    }

    /// Seals a packet by itself, or with `OPEN` opens it and says whether it was authentic.
    fn packet<const OPEN: bool>(&self, counter: u64, data: &mut [u8]) -> bool {
        split_tag(data).is_some_and(|(text, tag)| {
            // SAFETY: there is no key without the instructions.
            unsafe { single::packet::<OPEN>(&self.words.0, counter, text, tag) }
        })
    }

    /// The packet that is there alone, if it goes by itself then.
    fn only<'a, 'b>(&self, packets: &'a mut [Packet<'b>]) -> Option<&'a mut Packet<'b>> {
        let [packet] = packets else {
            return None;
        };
        let goes = !self.is_always_grouped() && !erase_beyond(packet, MAX_TEXT_LEN);
        goes.then_some(packet)
    }

    /// Chooses the width for the first of these packets, the longest, and the number of packets
    /// that go with it, by what saves the most time.
    fn choose(&self, entries: &[Entry<'_>]) -> (Width, usize) {
        let blocks = |entry: &Entry<'_>| blocks(entry.text_len());
        let longest = blocks(&entries[0]);
        let mut best = (Width::One, 1);
        if entries[0].text_len() > LONGEST {
            return best;
        }
        // The times one by one and together: the greatest ratio is best.
        let (mut best_alone, mut best_together) = (u64::from(!self.is_always_grouped()), 1);
        let (mut alone, mut summed) = (0, 0);
        for width in [Width::Four, Width::Eight] {
            let count = entries.len().min(width.packets());
            alone += (entries[summed..count].iter())
                .map(|entry| Width::One.nanoseconds(blocks(entry)))
                .sum::<u64>();
            summed = count;
            let together = width.nanoseconds(longest);
            if alone * best_together > best_alone * together {
                best = (width, count);
                (best_alone, best_together) = (alone, together);
            }
        }
        best
    }
}

/// The operation; the flags are those of the run.
enum Work<'a> {
    Seal,
    Open(&'a mut [bool]),
}

/// The number of packets that share a pass.
#[derive(Clone, Copy)]
enum Width {
    One,
    Four,
    Eight,
}

impl Width {
    fn packets(self) -> usize {
        match self {
            Self::One => 1,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// About what packets take, the longest of which has so many blocks. As
    /// measured on Sapphire Rapids, and one by one on Zen 5, on which AWS-LC is
    /// about as fast; what matters is how they compare.
    fn nanoseconds(self, blocks: u64) -> u64 {
        match self {
            Self::One => 130 + 10 * blocks,
            Self::Four => 270 + 190 * blocks.div_ceil(4),
            Self::Eight => 225 + 185 * blocks.div_ceil(2),
        }
    }
}

/// Blocks of a packet: the one with its keys, and those for its text.
fn blocks(text_len: usize) -> u64 {
    1 + text_len.div_ceil(vector::LEN) as u64
}

/// A packet and its place in the run, or none.
struct Entry<'a> {
    index: usize,
    counter: u64,
    data: Option<&'a mut [u8]>,
}

impl Entry<'_> {
    /// A constant, so that many are written at once.
    const NONE: Self = Self {
        index: 0,
        counter: 0,
        data: None,
    };

    fn text_len(&self) -> usize {
        let len = self.data.as_ref().map_or(0, |data| data.len());
        len.saturating_sub(TAG_LEN)
    }
}

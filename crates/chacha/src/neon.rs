//! ChaCha20-Poly1305 (RFC 8439) over a batch, with NEON.
//!
//! All blocks of ChaCha20 that a batch needs, its packets one after the other, are made in passes
//! of four (`lanes`), whichever packets they belong to: a pass makes all of a short packet and a
//! part of the next. Poly1305 is done with ordinary instructions (`weave`). Those of a pass are
//! woven into the rounds of the next pass, which the processor does at the same time.
//!
//! No secret decides on a branch or an address. Lengths and counters do, which are sent in the
//! clear, and so does the verdict on a tag, which an attacker may know. Key, key stream and
//! Poly1305's state are overwritten in memory. Registers are not cleared, nor are values that
//! the compiler spills to the stack.
#![allow(
    unsafe_code,
    reason = "vector instructions: loads, stores, and calls after detection"
)]

mod lanes;
mod runs;
#[cfg(test)]
mod tests;
mod vector;
mod weave;

use self::lanes::{KeyStream, LANES, LaneInputs, Lanes, ROWS};
use self::runs::{Plan, Run, Runs};
use self::vector::{LEN, Row, load, store, wipe, wipe_bytes, zero};
use self::weave::{Segment, Weave};
use crate::key::Words;
use crate::packet::{Packet, TAG_LEN, split_tag};
use crate::poly1305::{BLOCK_LEN as POLY_LEN, Poly1305, verdict};
use core::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

/// A ChaCha20-Poly1305 key for batches, with NEON. It is zeroised on drop.
pub struct NeonKey(Words);

impl NeonKey {
    /// Returns whether this processor has the instructions.
    #[must_use]
    pub fn is_supported() -> bool {
        is_aarch64_feature_detected!("neon")
    }

    /// Returns `None` on a processor without the instructions.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Option<Self> {
        Self::is_supported().then(|| Self(Words::new(key)))
    }

    /// Encrypts every packet in place.
    ///
    /// A packet shorter than [`TAG_LEN`] has no room for a tag and is left as it is. One of more
    /// than 256 GiB less 48 bytes, for which the cipher's blocks have no numbers (RFC 8439 §2.8),
    /// becomes zeros.
    pub fn seal(&self, packets: &mut [Packet<'_>]) {
        // SAFETY: there is no key without the instructions.
        unsafe { run::<false>(&self.0.0, packets, &mut []) };
    }

    /// Decrypts every packet in place; `authentic[i]` tells whether packet `i` verified.
    ///
    /// The text of a packet that did not verify is zeros afterwards. A packet shorter than
    /// [`TAG_LEN`] is not authentic. If the two slices differ in length, packets without a flag
    /// are not opened, and flags without a packet become false.
    pub fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        authentic.fill(false);
        let count = packets.len().min(authentic.len());
        // SAFETY: as above.
        unsafe { run::<true>(&self.0.0, &mut packets[..count], authentic) };
    }
}

/// A pass whose key stream has been made, and whose texts have not been authenticated.
struct Pass {
    runs: Runs,
    /// The authenticator of each run's packet.
    polys: [Poly1305; LANES],
    stream: KeyStream,
}

impl Pass {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new() -> Self {
        Self {
            runs: Runs::default(),
            polys: core::array::from_fn(|_| Poly1305::default()),
            stream: [zero(); LANES * ROWS],
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        wipe(&mut self.stream);
    }
}

/// Seals packets, or with `OPEN` opens them and says of each whether it was authentic.
#[target_feature(enable = "neon")]
fn run<const OPEN: bool>(key: &[u32; 8], packets: &mut [Packet<'_>], authentic: &mut [bool]) {
    let mut lanes = Lanes::new(key);
    let mut plan = Plan::default();
    let mut blocks = LaneInputs::NONE;
    let mut passes = [Pass::new(), Pass::new()];
    let mut last = 0;
    loop {
        let [a, b] = &mut passes;
        let (before, next) = if last == 0 { (a, b) } else { (b, a) };
        next.runs = plan.next(packets, &mut blocks);
        let mut tails = [[[0; POLY_LEN]; 2]; LANES];
        let mut segments = [Segment::default(); 2 * LANES];
        let count = segment(&before.runs, packets, &mut tails, &mut segments);
        {
            let mut weave = Weave::new(&mut before.polys, &segments[..count]);
            if !next.runs.is_empty() {
                lanes.next(&blocks, &mut weave, &mut next.stream);
            }
            weave.finish();
        }
        for (run, poly) in before.runs.iter().zip(&before.polys) {
            let verdict = end::<OPEN>(run, poly, &mut packets[run.place], &before.stream);
            if let (Some(verdict), Some(authentic)) = (verdict, authentic.get_mut(run.place)) {
                *authentic = verdict;
            }
        }
        if next.runs.is_empty() {
            break;
        }
        let unfinished = &before.polys[before.runs.last()];
        for (run, poly) in next.runs.iter().zip(&mut next.polys) {
            if run.first == 0 {
                poly.begin(words(&next.stream[run.lane * ROWS..]));
            } else {
                poly.resume(unfinished);
            }
            if !OPEN {
                apply_run(run, &mut packets[run.place], &next.stream);
            }
        }
        last = 1 - last;
    }
}

/// Lists what is to be authenticated of the runs' texts, and returns the number of segments.
/// `tails` has room for what is not in a text.
#[inline]
fn segment<'a>(
    runs: &Runs,
    packets: &'a [Packet<'_>],
    tails: &'a mut [[[u8; POLY_LEN]; 2]; LANES],
    segments: &mut [Segment<'a>; 2 * LANES],
) -> usize {
    let mut count = 0;
    let mut push = |segment: Segment<'a>| {
        segments[count] = segment;
        count += 1;
    };
    for ((poly, run), tail) in runs.iter().enumerate().zip(tails) {
        let text_len = packets[run.place].data.len() - TAG_LEN;
        let (blocks, rest) = packets[run.place].data[run.range(text_len)].as_chunks();
        if !blocks.is_empty() {
            push(Segment { poly, blocks });
        }
        if run.is_last {
            // Zeros fill the last block, and a block with the lengths follows (RFC 8439 §2.8).
            let [last, lengths] = tail;
            last[..rest.len()].copy_from_slice(rest);
            lengths[8..].copy_from_slice(&(text_len as u64).to_le_bytes());
            let blocks = &tail[usize::from(rest.is_empty())..];
            push(Segment { poly, blocks });
        }
    }
    count
}

/// Does what is left of a run when its text has been authenticated, and returns the verdict on a
/// packet that ends with it.
#[inline]
#[target_feature(enable = "neon")]
fn end<const OPEN: bool>(
    run: &Run,
    poly: &Poly1305,
    packet: &mut Packet<'_>,
    stream: &KeyStream,
) -> Option<bool> {
    let (text, tag) = split_tag(packet.data)?;
    let verdict = run.is_last.then(|| verdict::<OPEN>(poly, tag));
    if OPEN && verdict == Some(false) {
        text.fill(0);
    } else if OPEN {
        apply_run(run, packet, stream);
    }
    verdict
}

/// Applies a run's key stream.
#[inline]
#[target_feature(enable = "neon")]
fn apply_run(run: &Run, packet: &mut Packet<'_>, stream: &KeyStream) {
    if let Some((text, _)) = split_tag(packet.data) {
        let range = run.range(text.len());
        apply(&mut text[range], &stream[run.text_lane() * ROWS..]);
    }
}

/// Applies key stream, of which there is enough.
#[inline]
#[target_feature(enable = "neon")]
fn apply(text: &mut [u8], stream: &[Row]) {
    let (whole, rest) = text.as_chunks_mut();
    for (text, stream) in whole.iter_mut().zip(stream) {
        store(text, veorq_u32(load(text), *stream));
    }
    if !rest.is_empty() {
        let mut padded = [0; LEN];
        padded[..rest.len()].copy_from_slice(rest);
        let applied = veorq_u32(load(&padded), stream[whole.len()]);
        store(&mut padded, applied);
        rest.copy_from_slice(&padded[..rest.len()]);
        // Behind the text it is key stream.
        wipe_bytes(&mut padded);
    }
}

/// The one-time keys of a packet, as words, from its block 0.
#[inline]
#[target_feature(enable = "neon")]
fn words(block: &[Row]) -> [u64; 4] {
    let halves = |vector: Row| {
        let both = vreinterpretq_u64_u32(vector);
        [vgetq_lane_u64::<0>(both), vgetq_lane_u64::<1>(both)]
    };
    let ([a, b], [c, d]) = (halves(block[0]), halves(block[1]));
    [a, b, c, d]
}

//! ChaCha20-Poly1305 (RFC 8439) of one packet after the other, with AVX2.
//!
//! A packet of up to 320 bytes has its blocks of ChaCha20 side by side (`rows`), a longer one
//! eight at a time (`columns`). Poly1305 is done with ordinary instructions, woven into the
//! rounds of the next eight blocks, which the processor does at the same time; into those of
//! the next packet's first where there is one. Of packets of up to 64 bytes four go together.
//!
//! It needs AVX2 and BMI2: Haswell, Zen and later.
//!
//! No secret decides on a branch or an address. Lengths and counters do, which are sent in the
//! clear, and so does the verdict on a tag, which an attacker may know. Key, key stream and
//! Poly1305's state are overwritten in memory, and so is the stack to which the compiler spills
//! vectors of the key, after a batch. Registers are not cleared.
#![allow(
    unsafe_code,
    reason = "vector instructions: loads, stores, and calls after detection"
)]

mod columns;
mod rounds;
mod rows;
#[cfg(test)]
mod tests;
mod vector;

use self::{
    columns::{Columns, STREAM_LEN, Stream, WOVEN},
    vector::{LEN, Vector, load, store, wipe, wipe_bytes, zero},
};
use crate::key::{Words, nonce};
use crate::packet::{MAX_TEXT_LEN, Packet, TAG_LEN, erase_beyond, split_tag};
use crate::poly1305::{Poly1305, conclude};
use crate::stack::erase_dead_stack;
use core::{arch::x86_64::*, mem};
use std::is_x86_feature_detected;

/// Bytes of a ChaCha20 block.
const BLOCK_LEN: usize = 2 * LEN;

/// The longest text whose blocks go side by side, in bytes.
const SHORT: usize = 5 * BLOCK_LEN;

/// Stack that a batch uses, at most, in bytes.
const RUN_STACK: usize = 4 << 10;

/// Packets of one block of text that go together.
const TOGETHER: usize = 4;

/// A ChaCha20-Poly1305 key for batches, with AVX2. It is zeroised on drop.
pub struct Avx2Key(Words);

impl Avx2Key {
    /// Returns whether this processor has the instructions.
    #[must_use]
    pub fn is_supported() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2")
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
        unsafe { run::<false>(self.words(), packets, &mut []) };
        erase(packets);
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
        unsafe { run::<true>(self.words(), &mut packets[..count], authentic) };
        erase(packets);
    }

    fn words(&self) -> &[u32; 8] {
        &self.0.0
    }
}

/// Erases the words of the key that the compiler has spilled for want of registers. A short packet
/// by itself needs fewer.
fn erase(packets: &[Packet<'_>]) {
    if !matches!(packets, [packet] if packet.data.len() <= SHORT + TAG_LEN) {
        erase_dead_stack::<RUN_STACK>();
    }
}

/// Seals packets, or with `OPEN` opens them and says of each whether it was authentic.
#[target_feature(enable = "avx2,bmi2")]
fn run<const OPEN: bool>(key: &[u32; 8], mut packets: &mut [Packet<'_>], authentic: &mut [bool]) {
    let mut note = |place: usize, verdict: bool| {
        if let Some(authentic) = authentic.get_mut(place) {
            *authentic = verdict;
        }
    };
    // A short packet by itself needs nothing of what follows.
    if let [packet] = packets
        && let Some((text, tag)) = split_tag(packet.data)
        && text.len() <= SHORT
    {
        return note(0, short::<OPEN>(key, nonce(packet.counter), text, tag));
    }
    let mut begun: Option<Long<'_>> = None;
    let mut passes = Passes::new();
    let mut place = 0;
    while !packets.is_empty() {
        let together = packets
            .first_chunk::<TOGETHER>()
            .is_some_and(|four| four.iter().all(has_one_block));
        let count = if together { TOGETHER } else { 1 };
        let (now, later) = mem::take(&mut packets).split_at_mut(count);
        packets = later;
        let places = place..;
        place += count;
        if let Some(four) = now.first_chunk_mut::<TOGETHER>() {
            let nonces = four.each_ref().map(|packet| nonce(packet.counter));
            let mut columns = Columns::of_four(key, nonces);
            let streams = passes.next();
            columns.next(&mut Poly1305::default(), &[], streams);
            let parts = four.iter_mut().zip(streams.as_chunks::<4>().0).zip(places);
            for ((packet, stream), place) in parts {
                if let Some((text, tag)) = split_tag(packet.data) {
                    note(place, whole::<OPEN>(stream, text, tag));
                }
            }
            columns.wipe();
            continue;
        }
        for (packet, place) in now.iter_mut().zip(places) {
            if erase_beyond(packet, MAX_TEXT_LEN) {
                continue;
            }
            let Some((text, tag)) = split_tag(packet.data) else {
                continue;
            };
            let nonce = nonce(packet.counter);
            if text.len() <= SHORT {
                note(place, short::<OPEN>(key, nonce, text, tag));
                continue;
            }
            let mut columns = Columns::new(key, nonce);
            match &mut begun {
                Some(before) => {
                    before.weave::<OPEN>(&mut columns, passes.next());
                    note(before.place, before.end::<OPEN>(passes.now()));
                }
                None => columns.next(&mut Poly1305::default(), &[], passes.next()),
            }
            passes.advance();
            let long = begun.insert(Long::new(place, text, tag));
            long.begin(passes.now());
            long.crypt::<OPEN>(&mut columns, &mut passes);
            columns.wipe();
        }
    }
    if let Some(last) = &mut begun {
        note(last.place, last.end::<OPEN>(passes.now()));
    }
    passes.wipe();
}

/// Returns whether a packet has a tag and at most one block of text.
fn has_one_block(packet: &Packet<'_>) -> bool {
    (TAG_LEN..=TAG_LEN + BLOCK_LEN).contains(&packet.data.len())
}

/// A packet of at most [`SHORT`] bytes of text.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn short<const OPEN: bool>(
    key: &[u32; 8],
    nonce: [u32; 3],
    text: &mut [u8],
    tag: &mut [u8; TAG_LEN],
) -> bool {
    match text.len().div_ceil(BLOCK_LEN) {
        0..=1 => side_by_side::<OPEN, 1>(key, nonce, text, tag),
        2..=3 => side_by_side::<OPEN, 2>(key, nonce, text, tag),
        _ => side_by_side::<OPEN, 3>(key, nonce, text, tag),
    }
}

/// A packet for which the first `2 * N` blocks are enough.
#[target_feature(enable = "avx2,bmi2")]
fn side_by_side<const OPEN: bool, const N: usize>(
    key: &[u32; 8],
    nonce: [u32; 3],
    text: &mut [u8],
    tag: &mut [u8; TAG_LEN],
) -> bool {
    let mut stream = rows::blocks::<N>(key, nonce);
    let verdict = whole::<OPEN>(stream.as_flattened(), text, tag);
    wipe(stream.as_flattened_mut());
    verdict
}

/// A packet all of whose key stream there is, from its one-time keys on.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn whole<const OPEN: bool>(stream: &[Vector], text: &mut [u8], tag: &mut [u8; TAG_LEN]) -> bool {
    let mut poly = Poly1305::new(words(stream[0]));
    at_once::<OPEN>(&mut poly, text, tag, |text| apply(text, &stream[2..]))
}

/// Seals a text whose whole key stream `apply` has. Or with `OPEN` opens it: key stream is applied
/// only to one that was authentic, and another is zeros.
// Always, or `apply` would be in a function that has no vectors.
#[inline(always)]
pub(crate) fn at_once<const OPEN: bool>(
    poly: &mut Poly1305,
    text: &mut [u8],
    tag: &mut [u8; TAG_LEN],
    apply: impl Fn(&mut [u8]),
) -> bool {
    if !OPEN {
        apply(text);
    }
    poly.padded(text);
    let verdict = conclude::<OPEN>(poly, text.len(), tag);
    if OPEN && verdict {
        apply(text);
    } else if OPEN {
        text.fill(0);
    }
    verdict
}

/// The key stream of the pass made last and, while that is still to be applied, of the next.
struct Passes {
    streams: [Stream; 2],
    last: usize,
}

impl Passes {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        Self {
            streams: [[zero(); 16]; 2],
            last: 0,
        }
    }

    #[inline]
    fn now(&self) -> &Stream {
        &self.streams[self.last]
    }

    #[inline]
    fn next(&mut self) -> &mut Stream {
        &mut self.streams[1 - self.last]
    }

    /// The next has been made: it is the last.
    #[inline]
    fn advance(&mut self) {
        self.last = 1 - self.last;
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn wipe(&mut self) {
        wipe(self.streams.as_flattened_mut());
    }
}

/// A packet that takes more than one pass.
struct Long<'a> {
    /// Index in its batch.
    place: usize,
    poly: Poly1305,
    text: &'a mut [u8],
    tag: &'a mut [u8; TAG_LEN],
    /// Bytes of ciphertext that have been through Poly1305: whole blocks of ChaCha20.
    authenticated: usize,
    /// Bytes that the key stream has been applied to.
    applied: usize,
    /// First vector of the latest pass that belongs to the text's key stream. In the first pass,
    /// the one-time keys precede it.
    from: usize,
}

impl<'a> Long<'a> {
    fn new(place: usize, text: &'a mut [u8], tag: &'a mut [u8; TAG_LEN]) -> Self {
        Self {
            place,
            poly: Poly1305::default(),
            text,
            tag,
            authenticated: 0,
            applied: 0,
            from: 2,
        }
    }

    /// Takes the one-time keys from the first pass, in place: what is moved leaves a copy.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn begin(&mut self, stream: &Stream) {
        self.poly.begin(words(stream[0]));
    }

    /// All passes after the first. What remains is to authenticate some of the ciphertext
    /// and, with `OPEN`, to apply the last pass.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn crypt<const OPEN: bool>(&mut self, columns: &mut Columns, passes: &mut Passes) {
        loop {
            let room = STREAM_LEN - self.from * LEN;
            let rest = self.text.len() - self.applied;
            if !OPEN {
                self.apply(passes.now(), room.min(rest));
            }
            if rest <= room {
                break;
            }
            // Authenticates at least the ciphertext of the pass before.
            self.weave::<OPEN>(columns, passes.next());
            if OPEN {
                self.apply(passes.now(), room);
            }
            passes.advance();
            self.from = 0;
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn apply(&mut self, stream: &Stream, len: usize) {
        apply(&mut self.text[self.applied..][..len], &stream[self.from..]);
        self.applied += len;
    }

    /// The next pass of a packet, this one or the one after it, and meanwhile what there is
    /// of this one's ciphertext through Poly1305.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn weave<const OPEN: bool>(&mut self, columns: &mut Columns, stream: &mut Stream) {
        let end = if OPEN { self.text.len() } else { self.applied };
        let (chunks, _) = self.text[self.authenticated..end].as_chunks();
        let chunks = &chunks[..chunks.len().min(WOVEN)];
        self.authenticated += chunks.len() * BLOCK_LEN;
        columns.next(&mut self.poly, chunks, stream);
    }

    /// Finishes the packet with the last pass.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn end<const OPEN: bool>(&mut self, stream: &Stream) -> bool {
        self.poly.padded(&self.text[self.authenticated..]);
        let verdict = conclude::<OPEN>(&mut self.poly, self.text.len(), self.tag);
        if OPEN && verdict {
            apply(&mut self.text[self.applied..], &stream[self.from..]);
        } else if OPEN {
            self.text.fill(0);
        }
        verdict
    }
}

/// Applies key stream, of which there is enough.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn apply(text: &mut [u8], stream: &[Vector]) {
    let (whole, rest) = text.as_chunks_mut();
    for (text, stream) in whole.iter_mut().zip(stream) {
        store(text, _mm256_xor_si256(load(text), *stream));
    }
    if !rest.is_empty() {
        let mut padded = [0; LEN];
        padded[..rest.len()].copy_from_slice(rest);
        let applied = _mm256_xor_si256(load(&padded), stream[whole.len()]);
        store(&mut padded, applied);
        rest.copy_from_slice(&padded[..rest.len()]);
        // Behind the text it is key stream.
        wipe_bytes(&mut padded);
    }
}

/// The one-time keys, as words.
#[inline]
#[target_feature(enable = "avx2")]
fn words(keys: Vector) -> [u64; 4] {
    [
        _mm256_extract_epi64::<0>(keys),
        _mm256_extract_epi64::<1>(keys),
        _mm256_extract_epi64::<2>(keys),
        _mm256_extract_epi64::<3>(keys),
    ]
    .map(i64::cast_unsigned)
}

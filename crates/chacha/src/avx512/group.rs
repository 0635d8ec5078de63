//! A few packets sealed or opened together.
//!
//! A pass makes the next sixteen blocks of key stream, `N` for each of `16 / N`
//! packets, and applies them to as many bytes of text; ciphertext goes through
//! Poly1305 while it is in the cache. The first block of a packet is not for
//! text but has its one-time keys (RFC 8439 §2.6).
//!
//! While all packets have text left, the rounds of a pass are [woven] with
//! what is to be done with the blocks of the pass before, and with Poly1305 of
//! text that is ciphertext by then: rounds alone keep the port busy that
//! rotates, the rest the one that permutes. Where a packet is missing, some
//! other bytes take part in its place.
//!
//! [woven]: Group::woven

use super::chacha20::{Blocks, Transpose, columns, diagonals, round, step};
use super::poly1305::{LANES, Poly1305x8, Quad, halves};
use super::vector::{
    LEN, Vector512, from_u64, load, load_padded, store, store_cut, wipe_bytes, wipe_place, zero,
};
use crate::TAG_LEN;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// A packet, or by default none.
#[derive(Default)]
pub(super) struct Lane<'a> {
    counter: u64,
    /// The text that fills blocks, and what is left of it.
    chunks: &'a mut [[u8; LEN]],
    rest: &'a mut [u8],
    tag: Option<&'a mut [u8; TAG_LEN]>,
}

impl<'a> Lane<'a> {
    pub(super) fn new(counter: u64, text: &'a mut [u8], tag: &'a mut [u8; TAG_LEN]) -> Self {
        let (chunks, rest) = text.as_chunks_mut();
        Self {
            counter,
            chunks,
            rest,
            tag: Some(tag),
        }
    }

    /// Blocks of key stream that the packet needs.
    fn blocks(&self) -> usize {
        1 + self.chunks.len() + usize::from(!self.rest.is_empty())
    }

    /// Applies key stream to 64 bytes of text, or to as many as there are.
    #[inline]
    #[target_feature(enable = "avx512bw")]
    fn apply(&mut self, chunk: usize, stream: Vector512) {
        if chunk < self.chunks.len() {
            apply(&mut self.chunks[chunk], stream);
        } else if chunk == self.chunks.len() {
            store_cut(self.rest, _mm512_xor_si512(load_padded(self.rest), stream));
        }
    }

    /// Overwrites the text of a forgery.
    fn zeroise(&mut self) {
        self.chunks.as_flattened_mut().fill(0);
        self.rest.fill(0);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn apply(chunk: &mut [u8; LEN], stream: Vector512) {
    store(chunk, _mm512_xor_si512(load(chunk), stream));
}

/// Returns the next blocks for each lane of Poly1305: a chunk of eight texts, or two of four.
/// It has no loop, or the compiler would move rounds behind it.
#[inline]
#[target_feature(enable = "avx512f")]
fn rows<const W: usize, const P: usize>(
    text: &[&mut [[u8; LEN]; W]; P],
    chunk: usize,
) -> [Vector512; LANES] {
    let row = |lane: usize| &text[lane % P][chunk + lane / P];
    [
        load(row(0)),
        load(row(1)),
        load(row(2)),
        load(row(3)),
        load(row(4)),
        load(row(5)),
        load(row(6)),
        load(row(7)),
    ]
}

/// Seven rounds, and a [`Quad`] meanwhile.
macro_rules! authenticate {
    ($x:ident, $quad:ident, $h:ident, $powers:ident, $odd:ident, $even:ident) => {
        $odd!($x;
            $quad.pairs::<0>(), $quad.pairs::<1>(), $quad.pairs::<2>(), $quad.pairs::<3>(),
            $quad.fours::<0, 0>(), $quad.fours::<1, 0>(), $quad.fours::<0, 1>(), $quad.fours::<1, 1>());
        authenticate!(@ $x, $quad, $h, $powers, $even, $odd, 1, 2, ());
        authenticate!(@ $x, $quad, $h, $powers, $odd, $even, 3, 0, $quad.carry::<N>($h));
    };
    (@ $x:ident, $quad:ident, $h:ident, $powers:ident, $odd:ident, $even:ident, $b:literal, $c:literal, $end:expr) => {
        $odd!($x;
            $quad.eights::<$b>(), $quad.split::<$b>($h),
            $quad.product::<$b, 0, 0>($powers), $quad.product::<$b, 0, 1>($powers),
            $quad.product::<$b, 0, 2>($powers), $quad.product::<$b, 1, 0>($powers),
            $quad.product::<$b, 1, 1>($powers), $quad.product::<$b, 1, 2>($powers));
        $even!($x;
            $quad.product::<$b, 2, 0>($powers), $quad.product::<$b, 2, 1>($powers),
            $quad.product::<$b, 2, 2>($powers), (),
            $quad.eights::<$c>(), $quad.split::<$c>($h),
            $quad.product::<$c, 0, 0>($powers), $quad.product::<$c, 0, 1>($powers));
        $odd!($x;
            $quad.product::<$c, 0, 2>($powers), $quad.product::<$c, 1, 0>($powers),
            $quad.product::<$c, 1, 1>($powers), $quad.product::<$c, 1, 2>($powers),
            $quad.product::<$c, 2, 0>($powers), $quad.product::<$c, 2, 1>($powers),
            $quad.product::<$c, 2, 2>($powers), $end);
    };
}

/// Four rounds, and meanwhile blocks put together and applied to the chunks of
/// each text from the `at`th on, or without the first of the `N` blocks.
macro_rules! crypt {
    ($x:ident, $blocks:ident, $text:ident, $at:expr) => {
        diagonals!($x;
            $blocks.words::<0, 0>(), $blocks.pairs::<0, 0>(),
            $blocks.words::<0, 1>(), $blocks.pairs::<0, 1>(),
            $blocks.words::<1, 0>(), $blocks.pairs::<1, 0>(),
            $blocks.words::<1, 1>(), $blocks.pairs::<1, 1>());
        columns!($x;
            $blocks.words::<2, 0>(), $blocks.pairs::<2, 0>(),
            $blocks.words::<2, 1>(), $blocks.pairs::<2, 1>(),
            $blocks.words::<3, 0>(), $blocks.pairs::<3, 0>(),
            $blocks.words::<3, 1>(), $blocks.pairs::<3, 1>());
        diagonals!($x;
            $blocks.halves::<0, 0>(), crypt!(@ $blocks, $text, $at, 0, 4),
            $blocks.halves::<0, 1>(), crypt!(@ $blocks, $text, $at, 8, 12),
            $blocks.halves::<1, 0>(), crypt!(@ $blocks, $text, $at, 1, 5),
            $blocks.halves::<1, 1>(), crypt!(@ $blocks, $text, $at, 9, 13));
        columns!($x;
            $blocks.halves::<2, 0>(), crypt!(@ $blocks, $text, $at, 2, 6),
            $blocks.halves::<2, 1>(), crypt!(@ $blocks, $text, $at, 10, 14),
            $blocks.halves::<3, 0>(), crypt!(@ $blocks, $text, $at, 3, 7),
            $blocks.halves::<3, 1>(), crypt!(@ $blocks, $text, $at, 11, 15));
    };
    (@ $blocks:ident, $text:ident, $at:expr, $i:literal, $j:literal) => {{
        let [stream_i, stream_j] = $blocks.blocks();
        if let Some(at) = ($at + $i % N).checked_sub(1) {
            apply(&mut $text[$i / N][at], stream_i);
        }
        if let Some(at) = ($at + $j % N).checked_sub(1) {
            apply(&mut $text[$j / N][at], stream_j);
        }
    }};
}

/// The most chunks of a text that a woven pass touches.
const WINDOW: usize = 5;

/// Substitute for the text of lanes without a packet: see [`woven`](Group::woven).
type Spare = [[[u8; LEN]; WINDOW]; LANES];

/// Memory for keys and key stream, which groups use one after the other.
///
/// Keys and key stream are computed in place, because moving them takes time, and
/// overwritten once, after the last group. The memory is not initialised before,
/// because writing zeros takes as long as moving.
pub(super) struct Place {
    poly: MaybeUninit<Poly1305x8>,
    blocks: MaybeUninit<Blocks>,
    words: MaybeUninit<[Vector512; 16]>,
    spare: Spare,
}

impl Place {
    pub(super) fn new() -> Self {
        Self {
            poly: MaybeUninit::uninit(),
            blocks: MaybeUninit::uninit(),
            words: MaybeUninit::uninit(),
            spare: [[[0; LEN]; WINDOW]; LANES],
        }
    }

    /// Leaves no key or key stream behind.
    #[target_feature(enable = "avx512f")]
    pub(super) fn wipe(&mut self) {
        wipe_place(&mut self.poly);
        wipe_place(&mut self.blocks);
        wipe_place(&mut self.words);
    }
}

/// Up to `16 / N` packets on their way.
pub(super) struct Group<'a, 'b, const N: usize> {
    lanes: [Lane<'b>; LANES],
    poly: &'a mut Poly1305x8,
    blocks: &'a mut Blocks,
    /// The words of the blocks made last.
    words: &'a mut [Vector512; 16],
    spare: &'a mut Spare,
    /// Chunks of the longest text.
    chunks: usize,
    /// Chunks of each text that have been through Poly1305.
    authenticated: usize,
}

impl<'a, 'b, const N: usize> Group<'a, 'b, N> {
    /// Encrypts the texts and writes the tags.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn seal(key: &[u32; 8], lanes: [Lane<'b>; LANES], place: &'a mut Place) {
        let mut group = Self::new(key, lanes, place);
        let last = group.texts::<false>();
        group.crypt(last);
        group.authenticate_to(last + N - 1);
        let rests = group.rests();
        group.authenticate_rests(rests);
        for (lane, computed) in group.lanes.iter_mut().zip(group.poly.tags()) {
            if let Some(tag) = &mut lane.tag {
                **tag = computed;
            }
        }
        group.wipe_spare();
    }

    /// Decrypts the texts, and tells which had the right tag. The others are
    /// zeros then.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn open(
        key: &[u32; 8],
        lanes: [Lane<'b>; LANES],
        place: &'a mut Place,
    ) -> [bool; LANES] {
        let mut group = Self::new(key, lanes, place);
        let rests = group.rests();
        let last = group.texts::<true>();
        group.authenticate_to(last + N - 1);
        group.authenticate_rests(rests);
        let tags = group.lanes.each_ref().map(|lane| match &lane.tag {
            Some(tag) => **tag,
            None => [0; TAG_LEN],
        });
        let verified = group.poly.verify(&tags);
        // Last, as it has nothing to wait for, and the tags have.
        group.crypt(last);
        let authentic = core::array::from_fn(|lane| verified >> lane & 1 == 1);
        for (lane, authentic) in group.lanes.iter_mut().zip(authentic) {
            if !authentic && lane.tag.is_some() {
                lane.zeroise();
            }
        }
        group.wipe_spare();
        authentic
    }

    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn new(key: &[u32; 8], lanes: [Lane<'b>; LANES], place: &'a mut Place) -> Self {
        let nonces = (lanes.each_ref()).map(|lane| {
            // Four zero bytes, then the counter.
            [0, lane.counter as u32, (lane.counter >> 32) as u32]
        });
        let blocks = Blocks::start::<N>(&mut place.blocks, key, &nonces);
        let words = blocks.next::<N>(&mut place.words);
        let chunks = lanes.iter().map(|lane| lane.chunks.len()).max();
        let chunks = chunks.unwrap_or(0);
        let keys = Blocks::keys::<N>(words);
        Self {
            poly: Poly1305x8::start(&mut place.poly, keys, chunks, N),
            lanes,
            blocks,
            words,
            spare: &mut place.spare,
            chunks,
            authenticated: 0,
        }
    }

    /// Encrypts, or with `OPEN` decrypts, and authenticates the ciphertext, but
    /// for what is to be done with the last blocks, which have been made.
    /// Returns the first of them.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn texts<const OPEN: bool>(&mut self) -> usize {
        let blocks = self.lanes.iter().map(Lane::blocks).max().unwrap_or(1);
        let last = (blocks - 1) / N * N;
        for first in (0..last).step_by(N) {
            if !self.weave::<OPEN>(first) {
                if OPEN {
                    self.authenticate_to(first + N - 1);
                    self.crypt(first);
                } else {
                    self.crypt(first);
                    self.authenticate_to(first + N - 1);
                }
                let mut place = MaybeUninit::uninit();
                *self.words = *self.blocks.next::<N>(&mut place);
                wipe_place(&mut place);
            }
        }
        last
    }

    /// Applies the blocks made last, of which `first` is each packet's first. They
    /// are no longer words then.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn crypt(&mut self, first: usize) {
        // Block 0 is not for text.
        let numbers = first.max(1)..first + N;
        *self.words = Transpose::new(self.words).all();
        let streams = self.words.as_chunks::<N>().0;
        for (lane, streams) in self.lanes.iter_mut().zip(streams) {
            for block in numbers.clone() {
                lane.apply(block - 1, streams[block - first]);
            }
        }
    }

    /// Authenticates so many chunks of each packet, where it has them.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn authenticate_to(&mut self, chunks: usize) {
        while self.authenticated < chunks.min(self.chunks) {
            self.authenticate(self.authenticated);
            self.authenticated += 1;
        }
    }

    /// Authenticates 64 bytes of each packet that has them.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn authenticate(&mut self, chunk: usize) {
        let mut mask = 0;
        let mut rows = [zero(); LANES];
        for (i, (row, lane)) in rows.iter_mut().zip(&self.lanes).enumerate() {
            if let Some(chunk) = lane.chunks.get(chunk) {
                *row = load(chunk);
                mask |= 1 << i;
            }
        }
        self.poly.blocks(&halves(rows), mask);
    }

    /// The rest of each ciphertext, with zeros after it.
    #[target_feature(enable = "avx512bw")]
    fn rests(&self) -> [Vector512; LANES] {
        self.lanes.each_ref().map(|lane| load_padded(lane.rest))
    }

    /// The end of the authenticated bytes (RFC 8439 §2.8): the rest, padded to
    /// 16 bytes, and the lengths of associated data, of which there is none,
    /// and of the text.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn authenticate_rests(&mut self, rests: [Vector512; LANES]) {
        let lengths = self
            .lanes
            .each_ref()
            .map(|lane| (lane.chunks.len() * LEN + lane.rest.len()) as u64);
        let lengths = [zero(), from_u64(&lengths)];
        let [a, b, c, d] = halves(rests);
        let counts = (self.lanes.each_ref()).map(|lane| lane.rest.len().div_ceil(16));
        let most = counts.into_iter().max().unwrap_or(0);
        let mut lanes = self.lanes.iter().zip(counts);
        // All at once, if no packet has fewer.
        if lanes.all(|(lane, count)| lane.tag.is_none() || count == most) {
            match most {
                0 => (),
                1 => return self.poly.blocks(&[a, lengths], u8::MAX),
                2 => return self.poly.blocks(&[a, b, lengths], u8::MAX),
                3 => return self.poly.blocks(&[a, b, c, lengths], u8::MAX),
                _ => self.poly.blocks(&[a, b, c, d], u8::MAX),
            }
        } else {
            for (i, block) in [a, b, c, d].into_iter().enumerate().take(most) {
                let mut mask = 0;
                for (lane, count) in counts.into_iter().enumerate() {
                    mask |= u8::from(count > i) << lane;
                }
                self.poly.blocks(&[block], mask);
            }
        }
        self.poly.blocks(&[lengths], u8::MAX);
    }

    /// [`crypt`](Self::crypt), [`authenticate`](Self::authenticate) and the next pass, each in the gaps of the
    /// other. False, and nothing is done, if there is not text for it in every
    /// packet.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn weave<const OPEN: bool>(&mut self, first: usize) -> bool {
        match (N, OPEN, first == 0) {
            (2, false, true) => self.woven::<false, true, 1, 8>(first),
            (2, false, false) => self.woven::<false, false, 2, 8>(first),
            (2, true, true) => self.woven::<true, true, 2, 8>(first),
            (2, true, false) => self.woven::<true, false, 3, 8>(first),
            (4, false, true) => self.woven::<false, true, 3, 4>(first),
            (4, false, false) => self.woven::<false, false, 5, 4>(first),
            (4, true, true) => self.woven::<true, true, 4, 4>(first),
            (4, true, false) => self.woven::<true, false, 5, 4>(first),
            _ => false,
        }
    }

    /// [`weave`](Self::weave) for `P` packets. It touches `W` chunks of each.
    ///
    /// Block `first` is for chunk `first - 1`, if there is one. What is
    /// authenticated are `N` chunks: to open, from `first` on; to seal, where
    /// ciphertext must have been made, from `N / 2` before that.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn woven<const OPEN: bool, const FIRST: bool, const W: usize, const P: usize>(
        &mut self,
        first: usize,
    ) -> bool {
        let from = if OPEN {
            first
        } else {
            first.saturating_sub(N / 2)
        };
        // The first chunk of the window, and in it those that `first` and
        // `from` are for.
        let start = from.min(first.saturating_sub(1));
        let (crypted, hashed) = match (FIRST, OPEN) {
            (true, _) => (0, 0),
            (false, true) => (1, 1),
            (false, false) => (N / 2, 0),
        };
        let mut left = self.lanes.iter_mut().zip(&mut *self.spare);
        let text: [Option<&mut [[u8; LEN]; W]>; P] = core::array::from_fn(|_| {
            let (lane, spare) = left.next()?;
            match lane.tag {
                Some(_) => lane.chunks.get_mut(start..)?.first_chunk_mut(),
                None => spare.first_chunk_mut(),
            }
        });
        if self.authenticated != from || text.iter().any(Option::is_none) {
            return false;
        }
        let text = text.map(|text| text.expect("no text is short"));
        let (h, powers) = self.poly.parts();
        let mut x = self.blocks.begin();
        if OPEN {
            let mut quad = Quad::new(rows(&text, hashed));
            authenticate!(x, quad, h, powers, diagonals, columns);
            let mut quad = Quad::new(rows(&text, hashed + N / 2));
            authenticate!(x, quad, h, powers, columns, diagonals);
            let mut blocks = Transpose::new(self.words);
            crypt!(x, blocks, text, crypted);
            self.authenticated += N;
        } else {
            let mut blocks = Transpose::new(self.words);
            crypt!(x, blocks, text, crypted);
            let mut quad = Quad::new(rows(&text, hashed));
            authenticate!(x, quad, h, powers, diagonals, columns);
            self.authenticated += N / 2;
            if FIRST {
                columns!(x);
                diagonals!(x);
                columns!(x);
                diagonals!(x);
                columns!(x);
                diagonals!(x);
                columns!(x);
            } else {
                let mut quad = Quad::new(rows(&text, hashed + N / 2));
                authenticate!(x, quad, h, powers, columns, diagonals);
                self.authenticated += N / 2;
            }
        }
        diagonals!(x);
        self.blocks.end::<N>(&mut x);
        *self.words = x;
        true
    }

    /// Leaves no key stream where there is no packet.
    #[target_feature(enable = "avx512f")]
    fn wipe_spare(&mut self) {
        for (lane, spare) in self.lanes[..16 / N].iter().zip(&mut *self.spare) {
            if lane.tag.is_none() {
                wipe_bytes(spare);
            }
        }
    }
}

//! A few packets sealed or opened together.
//!
//! A pass makes the next sixteen blocks of key stream, `N` for each of `16 / N`
//! packets, and applies them to as many bytes of text; ciphertext goes through
//! Poly1305 while it is in the cache. The first block of a packet is not for
//! text but has its one-time keys (RFC 8439 §2.6).
//!
//! While all packets have text left, the rounds of a pass are [woven] with
//! what is to be done with the blocks of the pass before: rounds alone keep
//! the port busy that rotates, the rest the one that permutes.
//!
//! [woven]: Group::woven

use super::chacha20::{Blocks, Transpose, columns, diagonals, round, step};
use super::poly1305::{LANES, Poly1305, Quad, halves};
use super::vector::{LEN, Vector, from_u64, load, load_padded, store, wipe, zero};
use crate::TAG_LEN;
use core::arch::x86_64::*;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

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
    fn apply(&mut self, chunk: usize, stream: Vector) {
        if chunk < self.chunks.len() {
            apply(&mut self.chunks[chunk], stream);
        } else if chunk == self.chunks.len() {
            let mut last = [0; LEN];
            store(&mut last, _mm512_xor_si512(load_padded(self.rest), stream));
            self.rest.copy_from_slice(&last[..self.rest.len()]);
            last.zeroize();
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
fn apply(chunk: &mut [u8; LEN], stream: Vector) {
    store(chunk, _mm512_xor_si512(load(chunk), stream));
}

/// One of two chunks of each text. Without a loop, which would be a place for
/// the compiler to move rounds behind.
#[inline]
#[target_feature(enable = "avx512f")]
fn rows(text: &[&mut [[u8; LEN]; 2]; LANES], chunk: usize) -> [Vector; LANES] {
    let [a, b, c, d, e, f, g, h] = text;
    [
        load(&a[chunk]),
        load(&b[chunk]),
        load(&c[chunk]),
        load(&d[chunk]),
        load(&e[chunk]),
        load(&f[chunk]),
        load(&g[chunk]),
        load(&h[chunk]),
    ]
}

/// Seven rounds, and a [`Quad`] meanwhile.
macro_rules! authenticate {
    ($x:ident, $quad:ident, $poly:expr, $odd:ident, $even:ident) => {
        $odd!($x;
            $quad.pairs::<0>(), $quad.pairs::<1>(), $quad.pairs::<2>(), $quad.pairs::<3>(),
            $quad.fours::<0, 0>(), $quad.fours::<1, 0>(), $quad.fours::<0, 1>(), $quad.fours::<1, 1>());
        authenticate!(@ $x, $quad, $poly, $even, $odd, 1, 2, ());
        authenticate!(@ $x, $quad, $poly, $odd, $even, 3, 0, $quad.carry(&mut $poly));
    };
    (@ $x:ident, $quad:ident, $poly:expr, $odd:ident, $even:ident, $b:literal, $c:literal, $end:expr) => {
        $odd!($x;
            $quad.eights::<$b>(), $quad.split::<$b>(&$poly),
            $quad.product::<$b, 0, 0>(&$poly), $quad.product::<$b, 0, 1>(&$poly),
            $quad.product::<$b, 0, 2>(&$poly), $quad.product::<$b, 1, 0>(&$poly),
            $quad.product::<$b, 1, 1>(&$poly), $quad.product::<$b, 1, 2>(&$poly));
        $even!($x;
            $quad.product::<$b, 2, 0>(&$poly), $quad.product::<$b, 2, 1>(&$poly),
            $quad.product::<$b, 2, 2>(&$poly), (),
            $quad.eights::<$c>(), $quad.split::<$c>(&$poly),
            $quad.product::<$c, 0, 0>(&$poly), $quad.product::<$c, 0, 1>(&$poly));
        $odd!($x;
            $quad.product::<$c, 0, 2>(&$poly), $quad.product::<$c, 1, 0>(&$poly),
            $quad.product::<$c, 1, 1>(&$poly), $quad.product::<$c, 1, 2>(&$poly),
            $quad.product::<$c, 2, 0>(&$poly), $quad.product::<$c, 2, 1>(&$poly),
            $quad.product::<$c, 2, 2>(&$poly), $end);
    };
}

/// Four rounds, and meanwhile blocks put together and applied to two chunks of
/// each text.
macro_rules! crypt {
    ($x:ident, $blocks:ident, $text:ident) => {
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
            $blocks.halves::<0, 0>(), crypt!(@ $blocks, $text, 0, 4),
            $blocks.halves::<0, 1>(), crypt!(@ $blocks, $text, 8, 12),
            $blocks.halves::<1, 0>(), crypt!(@ $blocks, $text, 1, 5),
            $blocks.halves::<1, 1>(), crypt!(@ $blocks, $text, 9, 13));
        columns!($x;
            $blocks.halves::<2, 0>(), crypt!(@ $blocks, $text, 2, 6),
            $blocks.halves::<2, 1>(), crypt!(@ $blocks, $text, 10, 14),
            $blocks.halves::<3, 0>(), crypt!(@ $blocks, $text, 3, 7),
            $blocks.halves::<3, 1>(), crypt!(@ $blocks, $text, 11, 15));
    };
    (@ $blocks:ident, $text:ident, $i:literal, $j:literal) => {{
        let [stream_i, stream_j] = $blocks.blocks();
        apply(&mut $text[$i / 2][$i % 2], stream_i);
        apply(&mut $text[$j / 2][$j % 2], stream_j);
    }};
}

/// Up to `16 / N` packets on their way.
pub(super) struct Group<'a, const N: usize> {
    lanes: [Lane<'a>; LANES],
    poly: Poly1305,
    blocks: Blocks<N>,
    /// The words of the blocks made last.
    words: [Vector; 16],
}

impl<'a, const N: usize> Group<'a, N> {
    /// Encrypts the texts and writes the tags.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn seal(key: &[u32; 8], lanes: [Lane<'a>; LANES]) {
        let mut group = Self::new(key, lanes);
        group.texts::<false>();
        for (lane, computed) in group.lanes.iter_mut().zip(group.poly.tags()) {
            if let Some(tag) = &mut lane.tag {
                **tag = computed;
            }
        }
        group.wipe();
    }

    /// Decrypts the texts, and tells which had the right tag. The others are
    /// zeros then.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn open(key: &[u32; 8], lanes: [Lane<'a>; LANES]) -> [bool; LANES] {
        let mut group = Self::new(key, lanes);
        group.texts::<true>();
        let mut authentic = [false; LANES];
        for (i, (lane, computed)) in group.lanes.iter_mut().zip(group.poly.tags()).enumerate() {
            if let Some(tag) = &lane.tag {
                authentic[i] = computed.ct_eq(&**tag).into();
                if !authentic[i] {
                    lane.zeroise();
                }
            }
        }
        group.wipe();
        authentic
    }

    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn new(key: &[u32; 8], lanes: [Lane<'a>; LANES]) -> Self {
        let nonces = (lanes.each_ref()).map(|lane| {
            // Four zero bytes, then the counter.
            [0, lane.counter as u32, (lane.counter >> 32) as u32]
        });
        let mut blocks = Blocks::<N>::new(key, &nonces);
        let words = blocks.next();
        let first = Transpose::new(&words).all();
        let keys = core::array::from_fn(|lane| first.get(N * lane).copied().unwrap_or(zero()));
        let quads = lanes.iter().any(|lane| !lane.chunks.is_empty());
        Self {
            poly: Poly1305::new(keys, quads),
            lanes,
            blocks,
            words,
        }
    }

    /// Encrypts, or with `OPEN` decrypts, and authenticates the ciphertext.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn texts<const OPEN: bool>(&mut self) {
        let mut rests = self.rests();
        let blocks = self.lanes.iter().map(Lane::blocks).max().unwrap_or(0);
        for first in (0..blocks).step_by(N) {
            let last = first + N >= blocks;
            if last || !self.woven::<OPEN>(first) {
                self.finish::<OPEN>(first);
                if !last {
                    self.words = self.blocks.next();
                }
            }
        }
        if !OPEN {
            rests = self.rests();
        }
        self.authenticate_rests(rests);
    }

    /// What is to be done with the blocks made last, of which `first` is each
    /// packet's first.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn finish<const OPEN: bool>(&mut self, first: usize) {
        // Block 0 is not for text.
        let numbers = first.max(1)..first + N;
        if OPEN {
            numbers
                .clone()
                .for_each(|block| self.authenticate(block - 1));
        }
        let mut streams = Transpose::new(&self.words).all();
        for (lane, streams) in self.lanes.iter_mut().zip(streams.as_chunks::<N>().0) {
            for block in numbers.clone() {
                lane.apply(block - 1, streams[block - first]);
            }
        }
        wipe(&mut streams);
        if !OPEN {
            numbers.for_each(|block| self.authenticate(block - 1));
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
        if mask != 0 {
            self.poly.quad(rows, mask);
        }
    }

    /// What is left of each ciphertext, with zeros after it.
    #[target_feature(enable = "avx512bw")]
    fn rests(&self) -> [Vector; LANES] {
        self.lanes.each_ref().map(|lane| load_padded(lane.rest))
    }

    /// The end of the authenticated bytes (RFC 8439 §2.8): the rest, padded to
    /// 16 bytes, and the lengths of associated data, of which there is none,
    /// and of the text.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn authenticate_rests(&mut self, rests: [Vector; LANES]) {
        for (i, [low, high]) in halves(rests).into_iter().enumerate() {
            let mut mask = 0;
            for (lane, packet) in self.lanes.iter().enumerate() {
                mask |= u8::from(packet.rest.len() > 16 * i) << lane;
            }
            if mask == 0 {
                break;
            }
            self.poly.block(low, high, mask);
        }
        let lengths = self
            .lanes
            .each_ref()
            .map(|lane| (lane.chunks.len() * LEN + lane.rest.len()) as u64);
        self.poly.block(zero(), from_u64(&lengths), u8::MAX);
    }

    /// [`finish`](Self::finish) and the next pass, each in the gaps of the
    /// other. False, and nothing is done, if there is not text for it in every
    /// lane.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn woven<const OPEN: bool>(&mut self, first: usize) -> bool {
        if N != 2 || first == 0 || self.lanes.iter().any(|lane| lane.chunks.len() < first + 1) {
            return false;
        }
        let text = self.lanes.each_mut().map(|lane| -> &mut [[u8; LEN]; 2] {
            (&mut lane.chunks[first - 1..=first])
                .try_into()
                .expect("two chunks")
        });
        let mut x = self.blocks.begin();
        if OPEN {
            let mut quad = Quad::new(rows(&text, 0));
            authenticate!(x, quad, self.poly, diagonals, columns);
            let mut quad = Quad::new(rows(&text, 1));
            authenticate!(x, quad, self.poly, columns, diagonals);
            let mut blocks = Transpose::new(&self.words);
            crypt!(x, blocks, text);
        } else {
            let mut blocks = Transpose::new(&self.words);
            crypt!(x, blocks, text);
            let mut quad = Quad::new(rows(&text, 0));
            authenticate!(x, quad, self.poly, diagonals, columns);
            let mut quad = Quad::new(rows(&text, 1));
            authenticate!(x, quad, self.poly, columns, diagonals);
        }
        diagonals!(x);
        self.blocks.end(&mut x);
        self.words = x;
        true
    }

    /// Leaves no key or key stream where the group was.
    #[target_feature(enable = "avx512f")]
    fn wipe(&mut self) {
        wipe(&mut self.words);
        self.blocks.wipe();
        self.poly.wipe();
    }
}

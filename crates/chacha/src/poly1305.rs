//! Poly1305 (RFC 8439 §2.5) of one packet, with multiplications of 64 bits: they go on
//! beside vector instructions, which leave them their units.
//!
//! A number has two words of 64 bits and a few bits above. `r` is clamped: its upper word is
//! a multiple of four, so that what it makes of 2^64 times 2^64 can be taken modulo 2^130 - 5
//! at once, as 5/4 times. Words of `r` are below 2^60, `h` is below 2^131, so that no sum of
//! products reaches 2^128, nor one with the few bits 2^64.

#![allow(
    unsafe_code,
    reason = "an empty assembly statement fixes where Poly1305 is computed"
)]

use crate::TAG_LEN;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a block.
pub(crate) const BLOCK_LEN: usize = 16;

/// A running authenticator, by default with a key of zeros.
#[derive(Default, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Poly1305 {
    pub(crate) accumulator: Accumulator,
    /// The second half of the key, added last.
    s: u128,
}

/// A sum and its multiplier: all that a block needs.
///
/// It is not cleared on drop: an object that is cleared is in memory, and NEON's loop keeps its copy
/// in registers. Owners in memory clear theirs.
#[derive(Clone, Copy, Default, Zeroize)]
pub(crate) struct Accumulator {
    /// Below 2^131.
    pub(crate) h: [u64; 3],
    r: [u64; 2],
    /// 5/4 of the upper word of `r`.
    folded: u64,
}

impl Poly1305 {
    /// With the one-time key `r` and `s` as little-endian words.
    #[inline]
    #[cfg(any(test, target_arch = "x86_64"))]
    pub(crate) fn new(key: [u64; 4]) -> Self {
        let mut poly = Self::default();
        poly.begin(key);
        poly
    }

    /// Begins anew with this one-time key, in place. The authenticator is not moved, which would
    /// leave a copy of it.
    #[inline]
    pub(crate) fn begin(&mut self, key: [u64; 4]) {
        let r = [
            key[0] & 0x0fff_fffc_0fff_ffff,
            key[1] & 0x0fff_fffc_0fff_fffc,
        ];
        self.accumulator = Accumulator {
            h: [0; 3],
            r,
            folded: r[1] + (r[1] >> 2),
        };
        self.s = u128::from(key[2]) | u128::from(key[3]) << 64;
    }

    /// `r`, clamped.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn r(&self) -> [u64; 2] {
        self.accumulator.r
    }

    /// A whole block, as little-endian words.
    #[cfg(any(test, target_arch = "x86_64"))]
    #[inline]
    pub(crate) fn block(&mut self, block: [u64; 2]) {
        self.accumulator.block(block);
    }

    /// Block `INDEX` of a chunk, made at this place (see [`pin_word`]).
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn pinned<const INDEX: usize>(&mut self, chunk: &[u8; 64]) {
        self.accumulator.pinned_block(&chunk.as_chunks().0[INDEX]);
    }

    /// Goes on where another is.
    #[cfg(target_arch = "aarch64")]
    #[inline]
    pub(crate) fn resume(&mut self, other: &Self) {
        (self.accumulator, self.s) = (other.accumulator, other.s);
    }

    /// Bytes, with zeros after them where a block is not whole.
    #[cfg(any(test, target_arch = "x86_64"))]
    #[inline]
    pub(crate) fn padded(&mut self, bytes: &[u8]) {
        let (blocks, rest) = bytes.as_chunks::<BLOCK_LEN>();
        for block in blocks {
            self.block(words(block));
        }
        if !rest.is_empty() {
            let mut block = [0; BLOCK_LEN];
            block[..rest.len()].copy_from_slice(rest);
            self.block(words(&block));
        }
    }

    /// The tag.
    #[inline]
    pub(crate) fn tag(&self) -> [u8; TAG_LEN] {
        let [low, high, above] = self.accumulator.h;
        let h = u128::from(low) | u128::from(high) << 64;
        // h - (2^130 - 5), where that is not negative: it is below twice as much.
        let (less, carry) = h.overflowing_add(5);
        let reached = (above + u64::from(carry)) >> 2;
        let mask = u128::from(reached).wrapping_neg();
        let h = h ^ ((h ^ less) & mask);
        h.wrapping_add(self.s).to_le_bytes()
    }
}

impl Accumulator {
    /// A whole block, as little-endian words: `h = (h + block + 2^128) r`.
    #[inline]
    pub(crate) fn block(&mut self, [low, high]: [u64; 2]) {
        let times = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let [r0, r1] = self.r;

        let low = u128::from(self.h[0]) + u128::from(low);
        let high = u128::from(self.h[1]) + u128::from(high) + (low >> 64);
        let above = self.h[2] + 1 + (high >> 64) as u64;
        let (low, high) = (low as u64, high as u64);

        let first = times(low, r0) + times(high, self.folded);
        let second = times(low, r1) + times(high, r0) + u128::from(above * self.folded);
        let second = second + (first >> 64);
        let third = above * r0 + (second >> 64) as u64;

        // 2^130 is 5: once what is above it, and four times.
        let over = (third >> 2) + (third & !3);
        let first = u128::from(first as u64) + u128::from(over);
        let second = u128::from(second as u64) + (first >> 64);
        self.h = [
            first as u64,
            second as u64,
            (third & 3) + (second >> 64) as u64,
        ];
    }

    /// A whole block, made at this place (see [`pin_word`]).
    #[inline]
    pub(crate) fn pinned_block(&mut self, block: &[u8; BLOCK_LEN]) {
        self.block(words(block));
        self.h = self.h.map(pin_word);
    }
}

#[inline]
fn words(block: &[u8; BLOCK_LEN]) -> [u64; 2] {
    let both = u128::from_le_bytes(*block);
    [both as u64, (both >> 64) as u64]
}

/// The last block, that with the lengths (RFC 8439 §2.8), and the tag: writes it, or with
/// `OPEN` compares it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn conclude<const OPEN: bool>(
    poly: &mut Poly1305,
    text_len: usize,
    tag: &mut [u8; TAG_LEN],
) -> bool {
    poly.block([0, text_len as u64]);
    verdict::<OPEN>(poly, tag)
}

/// The tag: writes it, or with `OPEN` compares it.
#[inline]
pub(crate) fn verdict<const OPEN: bool>(poly: &Poly1305, tag: &mut [u8; TAG_LEN]) -> bool {
    let computed = poly.tag();
    if OPEN {
        let [computed, tag] = [computed, *tag].map(u128::from_le_bytes);
        return computed.ct_eq(&tag).into();
    }
    *tag = computed;
    true
}

/// The same word, made at this place and of which the compiler knows nothing: it keeps two such
/// places in order.
#[inline]
fn pin_word(mut word: u64) -> u64 {
    // SAFETY: there is no instruction.
    unsafe {
        core::arch::asm!("/* {} */", inout(reg) word, options(nomem, nostack, preserves_flags));
    }
    word
}

//! ChaCha20 of eight blocks at a time, one in each 32-bit lane, and Poly1305 meanwhile.

use super::rounds::{Rotations, rotate};
use super::vector::{LEN, Vector, hide, pin, wipe, zero};
use crate::key::CONSTANTS;
use crate::poly1305::Poly1305;
use core::arch::x86_64::*;

/// Key stream of a pass: eight blocks, each as its halves.
pub(super) type Stream = [Vector; 16];

/// Bytes of a [`Stream`].
pub(super) const STREAM_LEN: usize = 16 * LEN;

/// The most chunks that go through Poly1305 during a pass: one in each of ChaCha20's double
/// rounds.
pub(super) const WOVEN: usize = 10;

/// `a += b; d ^= a; d <<<= n` in some columns.
macro_rules! mix {
    ($x:ident, $rotate:expr, $($a:literal $b:literal $d:literal),*) => {
        $($x[$a] = _mm256_add_epi32($x[$a], $x[$b]);)*
        $($x[$d] = _mm256_xor_si256($x[$d], $x[$a]);)*
        $($x[$d] = pin($rotate($x[$d]));)*
    };
}

/// Four quarter rounds, and two pieces of other work. Two columns at a time where words
/// would not all fit in registers.
macro_rules! round {
    ($x:ident, $rotations:ident,
     [$a:literal $b:literal $c:literal $d:literal] [$e:literal $f:literal $g:literal $h:literal]
     [$i:literal $j:literal $k:literal $l:literal] [$m:literal $n:literal $o:literal $p:literal];
     $first:block $second:block) => {
        mix!($x, |x| $rotations.by_16(x), $a $b $d, $e $f $h, $i $j $l, $m $n $p);
        mix!($x, rotate::<12, 20>, $c $d $b, $g $h $f);
        mix!($x, rotate::<12, 20>, $k $l $j, $o $p $n);
        $first
        mix!($x, |x| $rotations.by_8(x), $a $b $d, $e $f $h, $i $j $l, $m $n $p);
        mix!($x, rotate::<7, 25>, $k $l $j, $o $p $n);
        mix!($x, rotate::<7, 25>, $c $d $b, $g $h $f);
        $second
    };
}

/// Columns and diagonals, and four pieces of other work.
macro_rules! double_round {
    ($x:ident, $rotations:ident; $a:block $b:block $c:block $d:block) => {
        round!($x, $rotations, [0 4 8 12] [1 5 9 13] [2 6 10 14] [3 7 11 15]; $a $b);
        round!($x, $rotations, [0 5 10 15] [1 6 11 12] [2 7 8 13] [3 4 9 14]; $c $d);
    };
}

/// The blocks of a packet, or the first two of each of four.
pub(super) struct Columns {
    /// The words of the next blocks' input.
    input: [Vector; 16],
}

impl Columns {
    /// From block 0 on.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    pub(super) fn new(key: &[u32; 8], nonce: [u32; 3]) -> Self {
        let numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        Self::with(
            key,
            numbers,
            nonce.map(|word| _mm256_set1_epi32(word.cast_signed())),
        )
    }

    /// Blocks 0 and 1 of packets with these nonces.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    pub(super) fn of_four(key: &[u32; 8], nonces: [[u32; 3]; 4]) -> Self {
        let numbers = _mm256_setr_epi32(0, 1, 0, 1, 0, 1, 0, 1);
        let nonces = core::array::from_fn(|word| {
            let [a, b, c, d] = nonces.map(|nonce| nonce[word].cast_signed());
            _mm256_setr_epi32(a, a, b, b, c, c, d, d)
        });
        Self::with(key, numbers, nonces)
    }

    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn with(key: &[u32; 8], numbers: Vector, nonces: [Vector; 3]) -> Self {
        let mut input = [zero(); 16];
        for (input, word) in input.iter_mut().zip(CONSTANTS.iter().chain(key)) {
            *input = _mm256_set1_epi32(word.cast_signed());
        }
        input[12] = numbers;
        input[13..].copy_from_slice(&nonces);
        Self { input }
    }

    /// Writes the next eight blocks of a packet's key stream; meanwhile chunks go through
    /// Poly1305, at most [`WOVEN`].
    ///
    /// Poly1305 waits for its own results most of the time, and for none of the rounds'.
    /// Interleaved, it takes next to no time of its own.
    #[target_feature(enable = "avx2,bmi2")]
    pub(super) fn next(&mut self, poly: &mut Poly1305, woven: &[[u8; 64]], stream: &mut Stream) {
        debug_assert!(woven.len() <= WOVEN);
        let mut x = self.input;
        let mut rotations = Rotations::new();
        hide(&mut rotations);
        for chunk in woven {
            double_round!(x, rotations;
                { poly.pinned::<0>(chunk) } { poly.pinned::<1>(chunk) }
                { poly.pinned::<2>(chunk) } { poly.pinned::<3>(chunk) });
        }
        for _ in woven.len()..WOVEN {
            double_round!(x, rotations; {} {} {} {});
        }
        for (x, input) in x.iter_mut().zip(self.input) {
            *x = _mm256_add_epi32(*x, input);
        }
        self.input[12] = _mm256_add_epi32(self.input[12], _mm256_set1_epi32(8));
        transpose(&x, stream);
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn wipe(&mut self) {
        wipe(&mut self.input);
    }
}

/// Sixteen words of eight blocks become eight blocks.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(x: &[Vector; 16], stream: &mut Stream) {
    // Words `i` to `i + 7` of each block.
    let half = |i: usize| -> [Vector; 8] {
        let fours = |i: usize| {
            let low = |i: usize| _mm256_unpacklo_epi32(x[i], x[i + 1]);
            let high = |i: usize| _mm256_unpackhi_epi32(x[i], x[i + 1]);
            [
                _mm256_unpacklo_epi64(low(i), low(i + 2)),
                _mm256_unpackhi_epi64(low(i), low(i + 2)),
                _mm256_unpacklo_epi64(high(i), high(i + 2)),
                _mm256_unpackhi_epi64(high(i), high(i + 2)),
            ]
        };
        let (a, b) = (fours(i), fours(i + 4));
        core::array::from_fn(|block| match block {
            0..4 => _mm256_permute2x128_si256::<0x20>(a[block], b[block]),
            _ => _mm256_permute2x128_si256::<0x31>(a[block - 4], b[block - 4]),
        })
    };
    let (low, high) = (half(0), half(8));
    for (block, (low, high)) in stream
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(low.into_iter().zip(high))
    {
        *block = [low, high];
    }
}

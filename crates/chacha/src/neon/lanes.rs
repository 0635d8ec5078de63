//! ChaCha20 of four blocks side by side, one in each 32-bit lane, and Poly1305 meanwhile.
//!
//! Their words take half of the vector registers. Eight blocks would take all of them: processors
//! with two vector pipelines would lose more by the words that have to wait in memory than they
//! would gain by having more to do.

use super::vector::{Row, load_words, pin, wipe, zero};
use super::weave::Weave;
use crate::key::CONSTANTS;
use core::arch::aarch64::*;

/// Lanes of a vector: the most blocks of a pass.
pub(super) const LANES: usize = 4;

/// Vectors of a block.
pub(super) const ROWS: usize = 4;

/// Key stream of a pass, block by block.
pub(super) type KeyStream = [Row; LANES * ROWS];

/// Blocks to be made side by side: word `12 + i` of each block's input.
pub(super) struct LaneInputs(pub(super) [[u32; LANES]; 4]);

impl LaneInputs {
    pub(super) const NONE: Self = Self([[0; LANES]; 4]);

    /// Puts block `number` of the packet with this nonce in a lane.
    #[inline]
    pub(super) fn set(&mut self, lane: usize, number: u32, nonce: [u32; 3]) {
        let [a, b, c] = nonce;
        for (words, word) in self.0.iter_mut().zip([number, a, b, c]) {
            words[lane] = word;
        }
    }
}

/// `a += b; d ^= a; d <<<= n` in four columns.
macro_rules! mix {
    ($x:ident, $rotate:expr, $($a:literal $b:literal $d:literal),*) => {
        $($x[$a] = vaddq_u32($x[$a], $x[$b]);)*
        $($x[$d] = veorq_u32($x[$d], $x[$a]);)*
        $($x[$d] = pin($rotate($x[$d]));)*
    };
}

/// Four quarter rounds, and a piece of other work.
macro_rules! round {
    ($x:ident, $by_8:ident,
     [$a:literal $b:literal $c:literal $d:literal] [$e:literal $f:literal $g:literal $h:literal]
     [$i:literal $j:literal $k:literal $l:literal] [$m:literal $n:literal $o:literal $p:literal];
     $other:expr) => {
        mix!($x, by_16, $a $b $d, $e $f $h, $i $j $l, $m $n $p);
        mix!($x, rotate::<12, 20>, $c $d $b, $g $h $f, $k $l $j, $o $p $n);
        mix!($x, |x| by_8(x, $by_8), $a $b $d, $e $f $h, $i $j $l, $m $n $p);
        mix!($x, rotate::<7, 25>, $c $d $b, $g $h $f, $k $l $j, $o $p $n);
        $other;
    };
}

/// The words of blocks' input.
pub(super) struct Lanes {
    /// Constants and key: words that all blocks have.
    key: [Row; 12],
    /// The words of each block.
    own: [Row; 4],
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn new(key: &[u32; 8]) -> Self {
        let mut lanes = Self {
            key: [zero(); 12],
            own: [zero(); 4],
        };
        for (lane, word) in lanes.key.iter_mut().zip(CONSTANTS.iter().chain(key)) {
            *lane = vdupq_n_u32(*word);
        }
        lanes
    }

    /// Writes key stream of four blocks; meanwhile texts go through Poly1305.
    ///
    /// Poly1305 waits for its own results most of the time, and for none of the rounds'.
    #[target_feature(enable = "neon")]
    pub(super) fn next(
        &mut self,
        blocks: &LaneInputs,
        weave: &mut Weave<'_>,
        stream: &mut KeyStream,
    ) {
        for (own, words) in self.own.iter_mut().zip(&blocks.0) {
            *own = load_words(words);
        }
        let input = |word: usize| match word {
            0..12 => self.key[word],
            _ => self.own[word - 12],
        };
        let mut x: [Row; 16] = core::array::from_fn(input);
        let by_8 = vcreate_u8x16([3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14]);
        let mut running = weave.take_up();
        for _ in 0..10 {
            round!(x, by_8, [0 4 8 12] [1 5 9 13] [2 6 10 14] [3 7 11 15]; weave.step(&mut running));
            round!(x, by_8, [0 5 10 15] [1 6 11 12] [2 7 8 13] [3 4 9 14]; weave.step(&mut running));
        }
        weave.put_down(running);
        for (word, x) in x.iter_mut().enumerate() {
            *x = vaddq_u32(*x, input(word));
        }
        transpose(&x, stream);
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        wipe(&mut self.key);
    }
}

/// Sixteen words of four blocks become four blocks.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(x: &[Row; 16], stream: &mut KeyStream) {
    for (row, [a, b, c, d]) in x.as_chunks().0.iter().enumerate() {
        let pairs = |low: bool, a: Row, b: Row| {
            let pairs = if low {
                vzip1q_u32(a, b)
            } else {
                vzip2q_u32(a, b)
            };
            vreinterpretq_u64_u32(pairs)
        };
        for (half, low) in [(0, true), (1, false)] {
            let (left, right) = (pairs(low, *a, *b), pairs(low, *c, *d));
            let fours = [vzip1q_u64(left, right), vzip2q_u64(left, right)];
            for (block, four) in fours.into_iter().enumerate() {
                stream[(2 * half + block) * ROWS + row] = vreinterpretq_u32_u64(four);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn vcreate_u8x16(bytes: [u8; 16]) -> uint8x16_t {
    // SAFETY: the 16 bytes may be read.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn by_16(x: Row) -> Row {
    vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(x)))
}

/// By eight bits, as the permutation of bytes `places`.
#[inline]
#[target_feature(enable = "neon")]
fn by_8(x: Row, places: uint8x16_t) -> Row {
    vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(x), places))
}

/// By any number of bits, `RIGHT` being 32 - `LEFT`.
#[inline]
#[target_feature(enable = "neon")]
fn rotate<const LEFT: i32, const RIGHT: i32>(x: Row) -> Row {
    const { assert!(LEFT + RIGHT == 32) };
    vsliq_n_u32::<LEFT>(vshrq_n_u32::<RIGHT>(x), x)
}

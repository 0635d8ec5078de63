//! ChaCha20 (RFC 8439 §2.3), sixteen blocks at a time, one in each 32-bit lane.

use super::poly1305::LANES;
use super::vector::{Vector512, from_u32, from_u64, pin, zero};
use crate::key::CONSTANTS;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// A mask of the upper 32-bit lane of each pair.
const ODD: u16 = 0xaaaa;

/// One of the four steps of two quarter rounds: `a += b; d ^= a; d <<<= n`.
///
/// Two at a time, as each instruction needs the result of the one before: so
/// close together the rotations, which only one port of Intel's processors
/// can do, begin early enough to keep it busy throughout.
macro_rules! step {
    ($x:ident, $n:literal, $a:literal $b:literal $d:literal, $e:literal $f:literal $h:literal) => {
        $x[$a] = _mm512_add_epi32($x[$a], $x[$b]);
        $x[$e] = _mm512_add_epi32($x[$e], $x[$f]);
        $x[$d] = _mm512_xor_si512($x[$d], $x[$a]);
        $x[$h] = _mm512_xor_si512($x[$h], $x[$e]);
        $x[$d] = $crate::avx512::vector::pin(_mm512_rol_epi32::<$n>($x[$d]));
        $x[$h] = $crate::avx512::vector::pin(_mm512_rol_epi32::<$n>($x[$h]));
    };
}

/// Four quarter rounds, with eight pieces of other work between their steps.
/// The compiler keeps the order, so that the processor meets both mixed.
macro_rules! round {
    ($x:ident,
     [$a:literal $b:literal $c:literal $d:literal] [$e:literal $f:literal $g:literal $h:literal]
     [$i:literal $j:literal $k:literal $l:literal] [$m:literal $n:literal $o:literal $p:literal];
     $($w:expr),*) => {
        round!(@ $x,
            (16, $a $b $d, $e $f $h) (16, $i $j $l, $m $n $p)
            (12, $c $d $b, $g $h $f) (12, $k $l $j, $o $p $n)
            (8, $a $b $d, $e $f $h) (8, $i $j $l, $m $n $p)
            (7, $c $d $b, $g $h $f) (7, $k $l $j, $o $p $n);
            $($w),*)
    };
    (@ $x:ident, $(($($step:tt)*))*; $($w:expr),*) => {
        $(step!($x, $($step)*); $w;)*
    };
}

macro_rules! columns {
    ($x:ident) => { columns!($x; (), (), (), (), (), (), (), ()) };
    ($x:ident; $($work:expr),*) => {
        round!($x, [0 4 8 12] [1 5 9 13] [2 6 10 14] [3 7 11 15]; $($work),*)
    };
}

macro_rules! diagonals {
    ($x:ident) => { diagonals!($x; (), (), (), (), (), (), (), ()) };
    ($x:ident; $($work:expr),*) => {
        round!($x, [0 5 10 15] [1 6 11 12] [2 7 8 13] [3 4 9 14]; $($work),*)
    };
}

pub(super) use {columns, diagonals, round, step};

/// The blocks of `16 / N` packets: `N` consecutive ones of each at a time.
pub(super) struct Blocks {
    /// The words of the next blocks' input, of which number 12, that of the
    /// block, changes. As vectors: to make one of a word takes the port that
    /// permutes.
    input: [Vector512; 16],
    /// After the first quarter round of columns 1 to 3, in which the number
    /// of the block takes no part. Column 0 is as it begins.
    mixed: [Vector512; 16],
}

impl Blocks {
    /// Begins with block 0 of packets with these nonces, each as little-endian
    /// words. Made in place.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn start<'a, const N: usize>(
        place: &'a mut MaybeUninit<Self>,
        key: &[u32; 8],
        nonces: &[[u32; 3]; LANES],
    ) -> &'a mut Self {
        let mut input = [zero(); 16];
        for (input, word) in input.iter_mut().zip(CONSTANTS.iter().chain(key)) {
            *input = _mm512_set1_epi32(word.cast_signed());
        }
        input[12] = from_u32(&core::array::from_fn(|lane| (lane % N) as u32));
        for (word, input) in input[13..].iter_mut().enumerate() {
            *input = from_u32(&core::array::from_fn(|lane| nonces[lane / N][word]));
        }
        let mut x = input;
        columns!(x);
        [x[0], x[4], x[8]] = [input[0], input[4], input[8]];
        let blocks = place.as_mut_ptr();
        // SAFETY: the place may be written, and both fields have been when it is taken for
        // initialised.
        unsafe {
            (&raw mut (*blocks).input).write(input);
            (&raw mut (*blocks).mixed).write(x);
            place.assume_init_mut()
        }
    }

    /// The state of the next sixteen blocks after the first round.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn begin(&self) -> [Vector512; 16] {
        let mut x = self.mixed;
        x[12] = self.input[12];
        // Column 0.
        x[0] = _mm512_add_epi32(x[0], x[4]);
        x[12] = _mm512_rol_epi32::<16>(_mm512_xor_si512(x[12], x[0]));
        x[8] = _mm512_add_epi32(x[8], x[12]);
        x[4] = _mm512_rol_epi32::<12>(_mm512_xor_si512(x[4], x[8]));
        x[0] = _mm512_add_epi32(x[0], x[4]);
        x[12] = _mm512_rol_epi32::<8>(_mm512_xor_si512(x[12], x[0]));
        x[8] = _mm512_add_epi32(x[8], x[12]);
        x[4] = _mm512_rol_epi32::<7>(_mm512_xor_si512(x[4], x[8]));
        x
    }

    /// Adds the input to the state after the last round, which makes it the
    /// key stream, and goes on to the next blocks.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn end<const N: usize>(&mut self, x: &mut [Vector512; 16]) {
        for (x, input) in x.iter_mut().zip(self.input) {
            *x = _mm512_add_epi32(*x, input);
        }
        self.input[12] = _mm512_add_epi32(self.input[12], _mm512_set1_epi32(N as i32));
    }

    /// The words of the next sixteen blocks' key stream, made in place.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn next<'a, const N: usize>(
        &mut self,
        place: &'a mut MaybeUninit<[Vector512; 16]>,
    ) -> &'a mut [Vector512; 16] {
        let mut x = self.begin();
        for _ in 0..9 {
            diagonals!(x);
            columns!(x);
        }
        diagonals!(x);
        self.end::<N>(&mut x);
        place.write(x)
    }

    /// The first 32 bytes of each packet's first block: their low and high
    /// halves, one packet in each 64-bit lane, and again from the first on
    /// where there are fewer than eight. `words` are those that came first.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn keys<const N: usize>(words: &[Vector512; 16]) -> [[Vector512; 2]; 2] {
        let lanes = from_u64(&core::array::from_fn(|lane| (lane * N / 2 % LANES) as u64));
        let half = |i: usize| {
            let [low, high] = [words[i], _mm512_slli_epi64::<32>(words[i + 1])];
            _mm512_permutexvar_epi64(lanes, _mm512_mask_mov_epi32(low, ODD, high))
        };
        [[half(0), half(2)], [half(4), half(6)]]
    }
}

/// Sixteen words of sixteen blocks becoming sixteen blocks, piece by piece.
pub(super) struct Transpose<'a> {
    words: &'a [Vector512; 16],
    /// Four words of each of four blocks, one 128-bit lane for each block: at
    /// `4 * i + j` words `4 * i..` of blocks `j`, `4 + j`, `8 + j`, `12 + j`.
    quarters: [Vector512; 16],
    /// Between two pieces.
    between: [Vector512; 2],
}

impl<'a> Transpose<'a> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(words: &'a [Vector512; 16]) -> Self {
        Self {
            words,
            quarters: [zero(); 16],
            between: [zero(); 2],
        }
    }

    /// Quarter `I`, half `H`, first piece.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn words<const I: usize, const H: usize>(&mut self) {
        let [a, b] = [self.words[4 * I], self.words[4 * I + 1]];
        let [c, d] = [self.words[4 * I + 2], self.words[4 * I + 3]];
        self.between = match H {
            0 => [_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)],
            _ => [_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)],
        };
    }

    /// Quarter `I`, half `H`, second piece.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn pairs<const I: usize, const H: usize>(&mut self) {
        let [ab, cd] = self.between;
        self.quarters[4 * I + 2 * H] = pin(_mm512_unpacklo_epi64(ab, cd));
        self.quarters[4 * I + 2 * H + 1] = pin(_mm512_unpackhi_epi64(ab, cd));
    }

    /// Blocks `J` and `4 + J`, or with `H` = 1 `8 + J` and `12 + J`, first piece.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn halves<const J: usize, const H: usize>(&mut self) {
        let [a, b] = [self.quarters[J], self.quarters[4 + J]];
        let [c, d] = [self.quarters[8 + J], self.quarters[12 + J]];
        self.between = match H {
            0 => [
                _mm512_shuffle_i32x4::<0x44>(a, b),
                _mm512_shuffle_i32x4::<0x44>(c, d),
            ],
            _ => [
                _mm512_shuffle_i32x4::<0xee>(a, b),
                _mm512_shuffle_i32x4::<0xee>(c, d),
            ],
        };
    }

    /// The two blocks of [`halves`](Self::halves).
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn blocks(&self) -> [Vector512; 2] {
        let [ab, cd] = self.between;
        [
            pin(_mm512_shuffle_i32x4::<0x88>(ab, cd)),
            pin(_mm512_shuffle_i32x4::<0xdd>(ab, cd)),
        ]
    }

    /// All pieces at once: the sixteen blocks.
    #[target_feature(enable = "avx512f")]
    pub(super) fn all(mut self) -> [Vector512; 16] {
        macro_rules! quarter {
            ($($i:literal)*) => {$(
                self.words::<$i, 0>();
                self.pairs::<$i, 0>();
                self.words::<$i, 1>();
                self.pairs::<$i, 1>();
            )*};
        }
        let mut blocks = [zero(); 16];
        macro_rules! four {
            ($($j:literal)*) => {$(
                self.halves::<$j, 0>();
                [blocks[$j], blocks[4 + $j]] = self.blocks();
                self.halves::<$j, 1>();
                [blocks[8 + $j], blocks[12 + $j]] = self.blocks();
            )*};
        }
        quarter!(0 1 2 3);
        four!(0 1 2 3);
        blocks
    }
}

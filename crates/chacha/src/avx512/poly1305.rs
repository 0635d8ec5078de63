//! Poly1305 (RFC 8439 §2.5) of eight packets at once, one in each 64-bit lane.
//!
//! A number has three limbs of 44 bits. The multiplications are those of
//! AVX-512 IFMA: the lower or the upper 52 bits of the product of two numbers of
//! 52 bits, added to 64 bits. What the upper ones give for limb `i` counts 2^8
//! in limb `i + 1`. 2^132 is 20 modulo 2^130 - 5.
//!
//! Four blocks are taken in one step, `(h + m0) r^4 + m1 r^3 + m2 r^2 + m3 r`,
//! which carries once. Where four packets have two lanes each, the first lane
//! takes four blocks with `r^8` to `r^5`, the second the next four with `r^4` to
//! `r` and no `h`, and the two are added up.
//!
//! For a packet by itself, a step takes eight blocks, one in each lane, and multiplies them by
//! `r^8`. The last step multiplies its blocks by `r^8` to `r`. Then the lanes are added up.
//!
//! Sizes: limbs of powers are below 2^44 + 2^17, those of `h` below twice that,
//! those of a block added to `h` below 2^46, 20 times a limb below 2^49, all
//! below 2^52. Of the 12 products in a sum, the lower parts make less than
//! 2^56 and the upper ones less than 2^47, or 2^43 in the last limb.

use super::vector::{LEN, Vector512, from_u64, load, pin, to_u64, wipe, zero};
use crate::TAG_LEN;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Packets, and 64-bit lanes of a vector.
pub(super) const LANES: usize = 8;

/// A mask of the first half of the lanes.
const FIRST_HALF: u8 = 0x0f;

const LIMB: i64 = (1 << 44) - 1;
const LAST_LIMB: i64 = (1 << 42) - 1;

/// A number below about 2^132, or the start of one's multiplication.
pub(super) type Limbs = [Vector512; 3];

/// A power of `r` as a factor: its limbs, and 20 times the last two.
pub(super) type Factor = [Vector512; 5];

/// Eight running authenticators.
pub(super) struct Poly1305x8 {
    h: Limbs,
    /// `r` to the power of 1 to 4.
    powers: [Factor; 4],
    /// Powers for a [`Quad`], in which two lanes share a packet: `r` to the power of
    /// 5 to 8 in the first of them. Uninitialised in other groups.
    shared: MaybeUninit<[Factor; 4]>,
    is_shared: bool,
    /// The second half of each key, added last: low and high words.
    s: [Vector512; 2],
}

impl Poly1305x8 {
    /// With the one-time keys `r` and `s`, low and high half of each, for texts
    /// of at most so many times 64 bytes. With `blocks` = 4 there are only four
    /// packets, and a [`Quad`] has each in lanes `i` and `4 + i`, which then
    /// have one key. Made in place.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn start(
        place: &mut MaybeUninit<Self>,
        [r, s]: [[Vector512; 2]; 2],
        chunks: usize,
        blocks: usize,
    ) -> &mut Self {
        let [r_low, r_high] = r;
        let clamp = |half, mask| _mm512_and_si512(half, _mm512_set1_epi64(mask));
        let low = clamp(r_low, 0x0fff_fffc_0fff_ffff);
        let high = clamp(r_high, 0x0fff_fffc_0fff_fffc);
        let r = [
            _mm512_and_si512(low, _mm512_set1_epi64(LIMB)),
            _mm512_and_si512(_mm512_shrdi_epi64::<44>(low, high), _mm512_set1_epi64(LIMB)),
            _mm512_srli_epi64::<24>(high),
        ];
        let first = factor(r);
        let r2 = multiply(r, &first);
        let second = factor(r2);
        let third = factor(multiply(r2, &first));
        let fourth = factor(multiply(r2, &second));
        let poly = place.as_mut_ptr();
        // SAFETY: the place may be written, and when it is taken for initialised all fields have
        // been, but for the one that need not be.
        let poly = unsafe {
            (&raw mut (*poly).h).write([zero(); 3]);
            (&raw mut (*poly).powers).write([first, second, third, fourth]);
            (&raw mut (*poly).is_shared).write(blocks == 4 && chunks > 1);
            (&raw mut (*poly).s).write(s);
            place.assume_init_mut()
        };
        if poly.is_shared {
            for power in poly.shared.write(poly.powers) {
                let far = factor(multiply([power[0], power[1], power[2]], &fourth));
                for (near, far) in power.iter_mut().zip(far) {
                    *near = _mm512_mask_mov_epi64(*near, FIRST_HALF, far);
                }
            }
        }
        poly
    }

    /// Returns the numbers that [`Quad`]s change, and the powers that they multiply with.
    pub(super) fn parts(&mut self) -> (&mut Limbs, &[Factor; 4]) {
        let powers = if self.is_shared {
            // SAFETY: `start`, which alone sets this, has written them then.
            unsafe { self.shared.assume_init_ref() }
        } else {
            &self.powers
        };
        (&mut self.h, powers)
    }

    /// At most four blocks, in the lanes of `mask`: low and high half of each.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn blocks(&mut self, blocks: &[[Vector512; 2]], mask: u8) {
        let mut sum = Sum::new();
        let mut h = self.h;
        for ([low, high], power) in blocks.iter().zip(self.powers[..blocks.len()].iter().rev()) {
            sum.add(&add(split(*low, *high), h), power);
            h = [zero(); 3];
        }
        for (old, new) in self.h.iter_mut().zip(sum.carry()) {
            *old = _mm512_mask_mov_epi64(*old, mask, new);
        }
    }

    /// The tags.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn tags(&self) -> [[u8; TAG_LEN]; LANES] {
        let [low, high] = self.sums().map(|half| to_u64(half));
        core::array::from_fn(|lane| {
            (u128::from(low[lane]) | u128::from(high[lane]) << 64).to_le_bytes()
        })
    }

    /// The lanes with these tags, as a mask. All are compared whole, at once.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn verify(&self, tags: &[[u8; TAG_LEN]; LANES]) -> u8 {
        let tags = tags.map(u128::from_le_bytes);
        let [low, high] = self.sums();
        _mm512_cmpeq_epi64_mask(low, from_u64(&tags.map(|tag| tag as u64)))
            & _mm512_cmpeq_epi64_mask(high, from_u64(&tags.map(|tag| (tag >> 64) as u64)))
    }

    /// The low and high halves of the tags.
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    fn sums(&self) -> [Vector512; 2] {
        let limb = _mm512_set1_epi64(LIMB);
        let [mut h0, mut h1, mut h2] = self.h;
        let up = |limb: &mut Vector512, next: &mut Vector512| {
            *next = _mm512_add_epi64(*next, _mm512_srli_epi64::<44>(*limb));
            *limb = _mm512_and_si512(*limb, _mm512_set1_epi64(LIMB));
        };
        for _ in 0..2 {
            up(&mut h0, &mut h1);
            up(&mut h1, &mut h2);
            let above = _mm512_srli_epi64::<42>(h2);
            h2 = _mm512_and_si512(h2, _mm512_set1_epi64(LAST_LIMB));
            h0 = _mm512_madd52lo_epu64(h0, above, _mm512_set1_epi64(5));
        }
        up(&mut h0, &mut h1);
        up(&mut h1, &mut h2);

        // h - p = h + 5 - 2^130, if that is not negative.
        let g0 = _mm512_add_epi64(h0, _mm512_set1_epi64(5));
        let g1 = _mm512_add_epi64(h1, _mm512_srli_epi64::<44>(g0));
        let g2 = _mm512_add_epi64(h2, _mm512_srli_epi64::<44>(g1));
        let reduce = _mm512_cmpgt_epu64_mask(g2, _mm512_set1_epi64(LAST_LIMB));
        h0 = _mm512_mask_and_epi64(h0, reduce, g0, limb);
        h1 = _mm512_mask_and_epi64(h1, reduce, g1, limb);
        h2 = _mm512_mask_mov_epi64(h2, reduce, g2);

        // The two bits from 2^128 up fall out of the last shift.
        let low = _mm512_or_si512(h0, _mm512_slli_epi64::<44>(h1));
        let high = _mm512_or_si512(_mm512_srli_epi64::<20>(h1), _mm512_slli_epi64::<24>(h2));
        let tag_low = _mm512_add_epi64(low, self.s[0]);
        let carry = _mm512_cmplt_epu64_mask(tag_low, low);
        let tag_high = _mm512_add_epi64(high, self.s[1]);
        let tag_high = _mm512_mask_add_epi64(tag_high, carry, tag_high, _mm512_set1_epi64(1));
        [tag_low, tag_high]
    }
}

/// Blocks of one packet, one in each lane.
pub(super) type Chunk = [[u8; LEN]; 2];

/// By lanes, the power of `r` that a block of a [`Chunk`] is multiplied by at the end: the
/// first by `r^8`. Lanes have blocks as two vectors are unpacked.
const POWERS: [u64; LANES] = [8, 4, 7, 3, 6, 2, 5, 1];

/// Powers of one packet's `r`, for its blocks eight at a time.
pub(super) struct Powers {
    /// `r^8` in all lanes: from one chunk to the next.
    eighth: Factor,
    /// Those of [`POWERS`].
    last: Factor,
}

impl Powers {
    /// Computes the powers of `r`, which is clamped, from its little-endian words.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn new([low, high]: [u64; 2]) -> Self {
        let r = limbs([low, high, 0]).map(|limb| _mm512_set1_epi64(limb.cast_signed()));
        let mix = |mask, lower: Limbs, upper: Limbs| -> Limbs {
            core::array::from_fn(|i| _mm512_mask_mov_epi64(lower[i], mask, upper[i]))
        };
        let pick = |powers: Limbs, lanes: [u64; LANES]| {
            powers.map(|limb| _mm512_permutexvar_epi64(from_u64(&lanes), limb))
        };
        // The first two powers again and again, then four, then all eight.
        let second = multiply(r, &factor(r));
        let powers = mix(0b1010_1010, r, second);
        let powers = mix(0b1100_1100, powers, multiply(powers, &factor(second)));
        let fourth = factor(pick(powers, [3; LANES]));
        let powers = mix(0b1111_0000, powers, multiply(powers, &fourth));
        Self {
            eighth: factor(pick(powers, [7; LANES])),
            last: factor(pick(powers, POWERS.map(|power| power - 1))),
        }
    }

    /// `h` after these chunks, as words; below 2^130 and some.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn absorb(&self, h: [u64; 3], chunks: &[Chunk]) -> [u64; 3] {
        let Some((last, chunks)) = chunks.split_last() else {
            return h;
        };
        let number = |[first, second]: &Chunk| {
            let (first, second) = (load(first), load(second));
            split(
                _mm512_unpacklo_epi64(first, second),
                _mm512_unpackhi_epi64(first, second),
            )
        };
        let mut h = limbs(h).map(|limb| _mm512_maskz_set1_epi64(1, limb.cast_signed()));
        for chunk in chunks {
            h = multiply(add(number(chunk), h), &self.eighth);
        }
        let h = multiply(add(number(last), h), &self.last);
        let [h0, h1, h2] = h.map(|limb| _mm512_reduce_add_epi64(limb).cast_unsigned());

        let h0 = h0 + 5 * (h2 >> 42);
        let h2 = h2 & LAST_LIMB.cast_unsigned();
        let lower = u128::from(h0) + (u128::from(h1) << 44);
        let (lower, carry) = lower.overflowing_add(u128::from(h2) << 88);
        [
            lower as u64,
            (lower >> 64) as u64,
            (h2 >> 40) + u64::from(carry),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn wipe(&mut self) {
        wipe(&mut self.eighth);
        wipe(&mut self.last);
    }
}

/// Limbs of a number given as words, of which the last has a few bits.
fn limbs([low, middle, above]: [u64; 3]) -> [u64; 3] {
    let limb = LIMB.cast_unsigned();
    [
        low & limb,
        (low >> 44 | middle << 20) & limb,
        middle >> 24 | above << 40,
    ]
}

/// Four [`blocks`](Poly1305x8::blocks) piece by piece, to be done between other things.
pub(super) struct Quad {
    /// 64 bytes of each packet.
    rows: [Vector512; LANES],
    /// Low and high halves of blocks, of two packets in each vector.
    pairs: [[Vector512; 2]; 4],
    /// The same of four packets, for each half of them: blocks 0 and 2, 1 and 3.
    fours: [[[Vector512; 2]; 2]; 2],
    /// The halves of the block at hand, of all packets.
    halves: [Vector512; 2],
    message: Limbs,
    sum: Sum,
}

impl Quad {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(rows: [Vector512; LANES]) -> Self {
        Self {
            rows,
            pairs: [[zero(); 2]; 4],
            fours: [[[zero(); 2]; 2]; 2],
            halves: [zero(); 2],
            message: [zero(); 3],
            sum: Sum::new(),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn pairs<const I: usize>(&mut self) {
        let [a, b] = [self.rows[2 * I], self.rows[2 * I + 1]];
        self.pairs[I] = [
            pin(_mm512_unpacklo_epi64(a, b)),
            pin(_mm512_unpackhi_epi64(a, b)),
        ];
    }

    /// Packets `4 * I..`, the low (`H` = 0) or high halves of blocks.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn fours<const I: usize, const H: usize>(&mut self) {
        let [a, b] = [self.pairs[2 * I][H], self.pairs[2 * I + 1][H]];
        self.fours[I][H] = [
            _mm512_shuffle_i64x2::<0x88>(a, b),
            _mm512_shuffle_i64x2::<0xdd>(a, b),
        ];
    }

    /// Block `B` of all packets.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn eights<const B: usize>(&mut self) {
        let [low, high] = [
            [self.fours[0][0][B % 2], self.fours[1][0][B % 2]],
            [self.fours[0][1][B % 2], self.fours[1][1][B % 2]],
        ];
        self.halves = match B / 2 {
            0 => [
                _mm512_shuffle_i64x2::<0x88>(low[0], low[1]),
                _mm512_shuffle_i64x2::<0x88>(high[0], high[1]),
            ],
            _ => [
                _mm512_shuffle_i64x2::<0xdd>(low[0], low[1]),
                _mm512_shuffle_i64x2::<0xdd>(high[0], high[1]),
            ],
        };
    }

    /// The same as limbs. The first block, which comes last here, is added to
    /// what there is.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn split<const B: usize>(&mut self, h: &Limbs) {
        let [low, high] = self.halves;
        self.message = split(low, high);
        if B == 0 {
            self.message = add(self.message, *h);
        }
    }

    /// Carries the sums of all products into `h`. With `N` = 4, lanes `i` and `4 + i` are
    /// added up.
    #[inline]
    #[target_feature(enable = "avx512ifma")]
    pub(super) fn carry<const N: usize>(&self, h: &mut Limbs) {
        *h = self.sum.carry();
        if N == 4 {
            *h = h.map(|limb| {
                let other = _mm512_shuffle_i64x2::<0b01_00_11_10>(limb, limb);
                _mm512_maskz_add_epi64(FIRST_HALF, limb, other)
            });
        }
    }

    /// Limb `I` of block `B` times its power, what goes to limb `K`.
    #[inline]
    #[target_feature(enable = "avx512ifma")]
    pub(super) fn product<const B: usize, const I: usize, const K: usize>(
        &mut self,
        powers: &[Factor; 4],
    ) {
        self.sum.product::<I, K>(&self.message, &powers[3 - B]);
    }
}

/// The low and high halves of the four blocks of each row.
#[target_feature(enable = "avx512f")]
pub(super) fn halves(rows: [Vector512; LANES]) -> [[Vector512; 2]; 4] {
    let mut quad = Quad::new(rows);
    quad.pairs::<0>();
    quad.pairs::<1>();
    quad.pairs::<2>();
    quad.pairs::<3>();
    quad.fours::<0, 0>();
    quad.fours::<1, 0>();
    quad.fours::<0, 1>();
    quad.fours::<1, 1>();
    let mut blocks = [[zero(); 2]; 4];
    quad.eights::<0>();
    blocks[0] = quad.halves;
    quad.eights::<1>();
    blocks[1] = quad.halves;
    quad.eights::<2>();
    blocks[2] = quad.halves;
    quad.eights::<3>();
    blocks[3] = quad.halves;
    blocks
}

/// A sum of products.
struct Sum {
    /// In 2^(44 i).
    lower: Limbs,
    /// In 2^(44 i + 52).
    upper: Limbs,
}

impl Sum {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        Self {
            lower: [zero(); 3],
            upper: [zero(); 3],
        }
    }

    #[inline]
    #[target_feature(enable = "avx512ifma")]
    fn product<const I: usize, const K: usize>(&mut self, number: &Limbs, factor: &Factor) {
        let factor = factor[if K >= I { K - I } else { 5 + K - I }];
        self.lower[K] = pin(_mm512_madd52lo_epu64(self.lower[K], number[I], factor));
        self.upper[K] = pin(_mm512_madd52hi_epu64(self.upper[K], number[I], factor));
    }

    #[inline]
    #[target_feature(enable = "avx512ifma")]
    fn add(&mut self, number: &Limbs, factor: &Factor) {
        self.product::<0, 0>(number, factor);
        self.product::<0, 1>(number, factor);
        self.product::<0, 2>(number, factor);
        self.product::<1, 0>(number, factor);
        self.product::<1, 1>(number, factor);
        self.product::<1, 2>(number, factor);
        self.product::<2, 0>(number, factor);
        self.product::<2, 1>(number, factor);
        self.product::<2, 2>(number, factor);
    }

    /// The limbs, small enough to be multiplied again.
    #[inline]
    #[target_feature(enable = "avx512ifma")]
    fn carry(&self) -> Limbs {
        let limb = _mm512_set1_epi64(LIMB);
        let [l0, l1, l2] = self.lower;
        let [u0, u1, u2] = self.upper;
        // u2 counts 2^140, which is 5 * 2^10.
        let u2 = _mm512_madd52lo_epu64(zero(), u2, _mm512_set1_epi64(5));
        let t0 = _mm512_add_epi64(l0, _mm512_slli_epi64::<10>(u2));
        let t1 = _mm512_add_epi64(l1, _mm512_slli_epi64::<8>(u0));
        let t2 = _mm512_add_epi64(l2, _mm512_slli_epi64::<8>(u1));
        let t1 = _mm512_add_epi64(t1, _mm512_srli_epi64::<44>(t0));
        let t2 = _mm512_add_epi64(t2, _mm512_srli_epi64::<44>(t1));
        let above = _mm512_srli_epi64::<44>(t2);
        let h0 = _mm512_and_si512(t0, limb);
        let h0 = _mm512_madd52lo_epu64(h0, above, _mm512_set1_epi64(20));
        [h0, _mm512_and_si512(t1, limb), _mm512_and_si512(t2, limb)]
    }
}

/// A block of 16 bytes and the bit above them (RFC 8439 §2.5.1).
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn split(low: Vector512, high: Vector512) -> Limbs {
    let limb = _mm512_set1_epi64(LIMB);
    [
        _mm512_and_si512(low, limb),
        _mm512_and_si512(_mm512_shrdi_epi64::<44>(low, high), limb),
        _mm512_shrdi_epi64::<24>(high, _mm512_set1_epi64(1)),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(a: Limbs, b: Limbs) -> Limbs {
    [
        _mm512_add_epi64(a[0], b[0]),
        _mm512_add_epi64(a[1], b[1]),
        _mm512_add_epi64(a[2], b[2]),
    ]
}

#[inline]
#[target_feature(enable = "avx512ifma")]
fn factor([r0, r1, r2]: Limbs) -> Factor {
    let twenty = |limb| _mm512_madd52lo_epu64(zero(), limb, _mm512_set1_epi64(20));
    [r0, r1, r2, twenty(r1), twenty(r2)]
}

#[inline]
#[target_feature(enable = "avx512ifma")]
fn multiply(number: Limbs, by: &Factor) -> Limbs {
    let mut sum = Sum::new();
    sum.add(&number, by);
    sum.carry()
}

//! Montgomery ladders side by side (RFC 7748 §5): eight ladders with one lane each, or two ladders
//! with four lanes each. The two take less than half of the time of the eight.
//!
//! A step of a ladder doubles one point, (x2 : z2), and adds it to the other, (x3 : z3). It has
//! four products of sums and differences of the two points, and then four products of sums and
//! differences of the first four. So four lanes compute a step in the time of three products
//! (Hisil, Egrice, Yassi: "Fast 4 way vectorized ladder for the complete set of Montgomery curves",
//! 2020).

use core::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_movepi64_mask, _mm512_set1_epi64, _mm512_slli_epi64,
    _mm512_srli_epi64, _mm512_xor_si512,
};

use zeroize::{DefaultIsZeroes, Zeroize, ZeroizeOnDrop};

use super::element::Element;
use super::lanes::{LANES, Narrow, Wide, load};

/// The constant a24 of the curve's equation: (486662 - 2) / 4.
const A24: u64 = 121_665;

/// A scalar multiplication: a point's u-coordinate, and a clamped scalar.
#[derive(ZeroizeOnDrop)]
pub(super) struct Multiplication {
    u: Element,
    /// Bit `i` is set if the scalar's bits `i` and `i + 1` differ: then the step of bit `i`
    /// exchanges the two points.
    swaps: [u64; WORDS],
}

/// Words of a scalar.
const WORDS: usize = 4;

/// Steps of a ladder: one for each of the bits 254 to 0 of a scalar.
const STEPS: u32 = 255;

impl Multiplication {
    pub(super) fn new(private: &[u8; 32], public: &[u8; 32]) -> Self {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(private.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        // RFC 7748 §5, decodeScalar25519.
        words[0] &= !7;
        words[3] = words[3] & (u64::MAX >> 1) | 1 << 62;
        let above = [words[1], words[2], words[3], 0];
        let swaps = core::array::from_fn(|i| words[i] ^ (words[i] >> 1 | above[i] << 63));
        words.zeroize();
        Self {
            u: Element::from_bytes(public),
            swaps,
        }
    }
}

/// The u-coordinate x / z; z is zero if the point is the neutral element.
#[derive(Clone, Copy, Default)]
pub(super) struct Quotient {
    pub(super) x: Element,
    pub(super) z: Element,
}

impl DefaultIsZeroes for Quotient {}

/// Multiplies two points.
#[target_feature(enable = "avx512f,avx512ifma,avx512dq")]
pub(super) fn multiply_two(multiplications: [&Multiplication; 2]) -> [Quotient; 2] {
    let each = |lanes: &dyn Fn(&Multiplication) -> [Element; 4]| {
        let [[a, b, c, d], [e, f, g, h]] = multiplications.map(lanes);
        Narrow::new(&[a, b, c, d, e, f, g, h])
    };
    let a24 = Element([A24, 0, 0, 0, 0]);
    let factors = each(&|it| [Element::ZERO, a24, Element::ONE, it.u]);
    // x2, z2, x3, z3
    let mut points = each(&|it| [Element::ONE, Element::ZERO, it.u, Element::ONE]).widen();
    // The factors are A, B, A, B and A, B, D, C. If the points are exchanged, A and C change
    // places, and so do B and D.
    let [left, right] = [[0, 1, 0, 1, 4, 5, 4, 5], [0, 1, 3, 2, 4, 5, 7, 6]].map(|it| load(&it));
    let [first, second] = multiplications;
    let words = |i: usize| {
        let [a, b] = [first.swaps[i], second.swaps[i]];
        load(&[a, a, a, a, b, b, b, b])
    };
    for_each_step(words, |bits| {
        let swap = _mm512_and_si512(_mm512_srli_epi64::<62>(bits), _mm512_set1_epi64(2));
        let orders = [left, right].map(|order| _mm512_xor_si512(order, swap));
        points = step_of_two(points, factors, orders);
    });
    let [a, b, _, _, c, d, _, _] = points.elements();
    [(a, b), (c, d)].map(|(x, z)| Quotient { x, z })
}

/// Lanes of each ladder that subtract.
const DIFFERENCES: u8 = 0b1010_1010;

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn step_of_two(points: Wide, factors: Narrow, [left, right]: [__m512i; 2]) -> Wide {
    // A = x2 + z2, B = x2 - z2, C = x3 + z3, D = x3 - z3
    let sums = points
        .negate_in(DIFFERENCES)
        .add(points.swap_neighbours())
        .carry();
    // AA = A², BB = B², DA = D·A, CB = C·B
    let products = sums.permute(left).mul(sums.permute(right));
    let neighbours = products.swap_neighbours();
    // AA, E = AA - BB, DA + CB, DA - CB
    let sums = products
        .negate_in(DIFFERENCES)
        .add_in(0b1110_1110, neighbours)
        .carry();
    // BB, AA + a24·E, DA + CB, u·(DA - CB)
    let others = sums.mul(factors).add_in(0b0011_0011, neighbours).carry();
    // x2 = AA·BB, z2 = E·(AA + a24·E), x3 = (DA + CB)², z3 = u·(DA - CB)²
    sums.mul(others)
}

/// Multiplies eight points.
#[target_feature(enable = "avx512f,avx512ifma,avx512dq")]
pub(super) fn multiply_eight(multiplications: [&Multiplication; LANES]) -> [Quotient; LANES] {
    let u = Narrow::new(&multiplications.map(|it| it.u));
    let [one, zero] = [Element::ONE, Element::ZERO].map(|it| Narrow::new(&[it; LANES]).widen());
    let (mut x2, mut z2, mut x3, mut z3) = (one, zero, u.widen(), one);
    for_each_step(
        |i| load(&multiplications.map(|it| it.swaps[i])),
        |bits| {
            let swap = _mm512_movepi64_mask(bits);
            let (mut a, mut b) = (x2.add(z2).carry(), x2.sub(z2).carry());
            let (mut c, mut d) = (x3.add(z3).carry(), x3.sub(z3).carry());
            Narrow::swap(&mut a, &mut c, swap);
            Narrow::swap(&mut b, &mut d, swap);
            let (da, cb) = (d.mul(a), c.mul(b));
            let (aa, bb) = (a.square(), b.square());
            let e = aa.sub(bb).carry();
            x3 = da.add(cb).carry().square();
            z3 = da.sub(cb).carry().square().carry().mul(u);
            x2 = aa.carry().mul(bb.carry());
            z2 = e.mul_small(A24).add(aa).carry().mul(e);
        },
    );
    let (x, z) = (x2.elements(), z2.elements());
    core::array::from_fn(|i| Quotient { x: x[i], z: z[i] })
}

/// Calls `step` for each bit of the words, from bit 254 down to 0. In the argument, this bit is the
/// highest of each lane.
///
/// The last bit of a clamped scalar is zero, so the points are in order after the last step.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma,avx512dq")]
fn for_each_step(words: impl Fn(usize) -> __m512i, mut step: impl FnMut(__m512i)) {
    let mut bits = _mm512_slli_epi64::<1>(words(WORDS - 1));
    for index in (0..STEPS).rev() {
        step(bits);
        bits = match index % u64::BITS {
            0 if index > 0 => words((index / u64::BITS - 1) as usize),
            _ => _mm512_slli_epi64::<1>(bits),
        };
    }
}

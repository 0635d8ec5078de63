//! An element of the field of integers modulo p = 2^255 - 19, in words of 64 bits: to and from
//! bytes, and inversion.

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use zeroize::{DefaultIsZeroes, Zeroizing};

/// Limbs of an element.
pub(super) const LIMBS: usize = 5;

/// Bits of a limb.
pub(super) const BITS: u32 = 51;

/// A limb of ones.
pub(super) const MASK: u64 = (1 << BITS) - 1;

/// An element as limbs below 2^52, the lowest first. Its value may be p or more.
#[derive(Clone, Copy, Default)]
pub(super) struct Element(pub(super) [u64; LIMBS]);

impl DefaultIsZeroes for Element {}

impl Element {
    pub(super) const ZERO: Self = Self([0; LIMBS]);
    pub(super) const ONE: Self = Self([1, 0, 0, 0, 0]);

    /// Decodes a u-coordinate. The highest bit is ignored, and p or more is allowed (RFC 7748 §5).
    pub(super) fn from_bytes(bytes: &[u8; 32]) -> Self {
        let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("8 bytes"));
        Self([
            word(0) & MASK,
            word(6) >> 3 & MASK,
            word(12) >> 6 & MASK,
            word(19) >> 1 & MASK,
            word(24) >> 12 & MASK,
        ])
    }

    /// Encodes the number below p.
    pub(super) fn to_bytes(self) -> [u8; 32] {
        // After two rounds the value is below 2p.
        let mut limbs = self.carry().carry().0;
        // The value is at least p if 19 more carry out of 255 bits.
        let over = limbs.iter().fold(19, |carry, limb| (limb + carry) >> BITS);
        limbs[0] += 19 * over;
        let mut carry = 0;
        for limb in &mut limbs {
            *limb += carry;
            carry = *limb >> BITS;
            *limb &= MASK;
        }
        let [a, b, c, d, e] = limbs;
        let words = [
            a | b << 51,
            b >> 13 | c << 38,
            c >> 26 | d << 25,
            d >> 39 | e << 12,
        ];
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the element with these limbs, which may have any size.
    pub(super) fn from_wide(limbs: [u64; LIMBS]) -> Self {
        Self(limbs).carry()
    }

    /// Carries the bits of each limb beyond 51. Modulo p, 2^255 is 19.
    fn carry(self) -> Self {
        let Self([a, b, c, d, e]) = self;
        Self([
            (a & MASK) + 19 * (e >> BITS),
            (b & MASK) + (a >> BITS),
            (c & MASK) + (b >> BITS),
            (d & MASK) + (c >> BITS),
            (e & MASK) + (d >> BITS),
        ])
    }

    pub(super) fn mul(&self, other: &Self) -> Self {
        let [a0, a1, a2, a3, a4] = self.0;
        let [b0, b1, b2, b3, b4] = other.0;
        let [c1, c2, c3, c4] = [b1 * 19, b2 * 19, b3 * 19, b4 * 19];
        Self::narrow([
            wide(a0, b0) + wide(a1, c4) + wide(a2, c3) + wide(a3, c2) + wide(a4, c1),
            wide(a0, b1) + wide(a1, b0) + wide(a2, c4) + wide(a3, c3) + wide(a4, c2),
            wide(a0, b2) + wide(a1, b1) + wide(a2, b0) + wide(a3, c4) + wide(a4, c3),
            wide(a0, b3) + wide(a1, b2) + wide(a2, b1) + wide(a3, b0) + wide(a4, c4),
            wide(a0, b4) + wide(a1, b3) + wide(a2, b2) + wide(a3, b1) + wide(a4, b0),
        ])
    }

    fn square(&self) -> Self {
        let [a0, a1, a2, a3, a4] = self.0;
        let [d0, d1, d2] = [a0 * 2, a1 * 2, a2 * 2];
        let [c3, c4] = [a3 * 19, a4 * 19];
        Self::narrow([
            wide(a0, a0) + wide(d1, c4) + wide(d2, c3),
            wide(d0, a1) + wide(d2, c4) + wide(a3, c3),
            wide(d0, a2) + wide(a1, a1) + wide(a3 * 2, c4),
            wide(d0, a3) + wide(d1, a2) + wide(a4, c4),
            wide(d0, a4) + wide(d1, a3) + wide(a2, a2),
        ])
    }

    /// Carries all limbs at once: a chain of carries would take half of the time of an inversion.
    fn narrow(columns: [u128; LIMBS]) -> Self {
        let low = columns.map(|column| column as u64 & MASK);
        let high = columns.map(|column| (column >> BITS) as u64);
        Self([
            low[0] + 19 * high[4],
            low[1] + high[0],
            low[2] + high[1],
            low[3] + high[2],
            low[4] + high[3],
        ])
        .carry()
    }

    fn squares(&self, count: u32) -> Self {
        (1..count).fold(self.square(), |it, _| it.square())
    }

    /// Replaces zero by one. Returns whether it was zero.
    pub(super) fn make_invertible(&mut self) -> Choice {
        let is_zero = self.to_bytes().ct_eq(&[0; 32]);
        self.assign_if(&Self::ONE, is_zero);
        is_zero
    }

    pub(super) fn assign_if(&mut self, other: &Self, choice: Choice) {
        for (limb, other) in self.0.iter_mut().zip(&other.0) {
            limb.conditional_assign(other, choice);
        }
    }

    /// Returns the inverse. By Fermat's theorem it is the element to the power
    /// p - 2 = 2^255 - 21.
    pub(super) fn invert(&self) -> Self {
        let two = self.square();
        let nine = two.squares(2).mul(self);
        let eleven = nine.mul(&two);
        // `ones_n` is the element to the power 2^n - 1.
        let ones_5 = eleven.square().mul(&nine);
        let ones_10 = ones_5.squares(5).mul(&ones_5);
        let ones_20 = ones_10.squares(10).mul(&ones_10);
        let ones_40 = ones_20.squares(20).mul(&ones_20);
        let ones_50 = ones_40.squares(10).mul(&ones_10);
        let ones_100 = ones_50.squares(50).mul(&ones_50);
        let ones_200 = ones_100.squares(100).mul(&ones_100);
        let ones_250 = ones_200.squares(50).mul(&ones_50);
        ones_250.squares(5).mul(&eleven)
    }
}

/// Replaces every element by its inverse. Elements that are zero stay zero.
///
/// All of them together take one inversion, that of their product (Montgomery's trick).
pub(super) fn invert_all<const N: usize>(elements: &mut [Element; N]) {
    let mut zeros = [Choice::from(0); N];
    let mut products = Zeroizing::new([Element::ONE; N]);
    let mut product = Zeroizing::new(Element::ONE);
    for i in 0..N {
        zeros[i] = elements[i].make_invertible();
        products[i] = *product;
        *product = product.mul(&elements[i]);
    }
    let mut inverse = Zeroizing::new(product.invert());
    for i in (0..N).rev() {
        let inverted = inverse.mul(&products[i]);
        *inverse = inverse.mul(&elements[i]);
        elements[i] = inverted;
        elements[i].assign_if(&Element::ZERO, zeros[i]);
    }
}

fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

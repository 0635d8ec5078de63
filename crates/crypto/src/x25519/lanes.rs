//! Eight elements of the field side by side, with AVX-512 IFMA.
//!
//! An element is five limbs of 51 bits, and a vector has the same limb of all eight elements, each
//! in its lane. The instructions multiply the low 52 bits of two lanes and add the low or the high
//! 52 bits of the product to a third. So the factors of a product have limbs below 2^52
//! ([`Narrow`]). The product itself is left with limbs below 2^61 ([`Wide`]): the sum or difference
//! of two products is carried only once, before it is multiplied again.

use core::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_loadu_si512, _mm512_madd52hi_epu64,
    _mm512_madd52lo_epu64, _mm512_mask_add_epi64, _mm512_mask_mov_epi64, _mm512_mask_sub_epi64,
    _mm512_permutexvar_epi64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_shuffle_epi32,
    _mm512_slli_epi64, _mm512_srli_epi64, _mm512_storeu_si512, _mm512_sub_epi64,
};

use super::element::{BITS, Element, LIMBS, MASK};

/// The number of elements.
pub(super) const LANES: usize = 8;

/// Columns of a product.
const COLUMNS: usize = 2 * LIMBS;

/// Columns that sum few products. Their high halves are doubled before the low halves are added,
/// which saves an addition. In other columns the two sums are computed side by side, which takes
/// less time.
const SHORT: [usize; 5] = [1, 2, 7, 8, 9];

/// 2^11 · p. Its limbs are greater than those of a product, and the sum of the two is below 2^63.
const BIAS: [u64; LIMBS] = [
    (MASK - 18) << 11,
    MASK << 11,
    MASK << 11,
    MASK << 11,
    MASK << 11,
];

/// Elements with limbs below 2^52.
#[derive(Clone, Copy)]
pub(super) struct Narrow([__m512i; LIMBS]);

/// Elements with limbs below 2^63; those of products are below 2^61.
#[derive(Clone, Copy)]
pub(super) struct Wide([__m512i; LIMBS]);

impl Narrow {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(elements: &[Element; LANES]) -> Self {
        Self(core::array::from_fn(|i| {
            load(&elements.map(|element| element.0[i]))
        }))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn widen(self) -> Wide {
        Wide(self.0)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn mul(self, other: Self) -> Wide {
        let (Self(a), Self(b)) = (self, other);
        let mut high = [zero(); COLUMNS];
        for i in 0..LIMBS {
            for j in 0..LIMBS {
                high[i + j + 1] = _mm512_madd52hi_epu64(high[i + j + 1], a[i], b[j]);
            }
        }
        let mut low = [zero(); COLUMNS];
        for i in SHORT {
            low[i] = double(high[i]);
        }
        for i in 0..LIMBS {
            for j in 0..LIMBS {
                low[i + j] = _mm512_madd52lo_epu64(low[i + j], a[i], b[j]);
            }
        }
        // The high half of a product counts 2^52: two units of the next limb.
        Wide::fold(core::array::from_fn(|i| match SHORT.contains(&i) {
            true => low[i],
            false => _mm512_add_epi64(low[i], double(high[i])),
        }))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn square(self) -> Wide {
        let Self(a) = self;
        let mut low = [zero(); COLUMNS];
        let mut high = [zero(); COLUMNS];
        for i in 0..LIMBS {
            for j in i + 1..LIMBS {
                high[i + j + 1] = _mm512_madd52hi_epu64(high[i + j + 1], a[i], a[j]);
                low[i + j] = _mm512_madd52lo_epu64(low[i + j], a[i], a[j]);
            }
        }
        // Products of two different limbs count twice, high halves twice as much.
        high = high.map(|sum| double(sum));
        for i in 0..LIMBS {
            high[2 * i + 1] = _mm512_madd52hi_epu64(high[2 * i + 1], a[i], a[i]);
        }
        let mut columns = core::array::from_fn(|i| double(_mm512_add_epi64(low[i], high[i])));
        for i in 0..LIMBS {
            columns[2 * i] = _mm512_madd52lo_epu64(columns[2 * i], a[i], a[i]);
        }
        Wide::fold(columns)
    }

    /// Multiplies by a number below 2^40.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn mul_small(self, factor: u64) -> Wide {
        let Self(a) = self;
        let factor = broadcast(factor);
        let high = a.map(|limb| double(_mm512_madd52hi_epu64(zero(), limb, factor)));
        Wide(core::array::from_fn(|i| {
            let carried = match i {
                0 => _mm512_madd52lo_epu64(zero(), high[LIMBS - 1], broadcast(19)),
                _ => high[i - 1],
            };
            _mm512_madd52lo_epu64(carried, a[i], factor)
        }))
    }

    /// Reorders the elements: the new element `i` is the old element `order[i]`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn permute(self, order: __m512i) -> Self {
        Self(self.0.map(|limb| _mm512_permutexvar_epi64(order, limb)))
    }

    /// Exchanges the elements of `lanes`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn swap(first: &mut Self, second: &mut Self, lanes: u8) {
        for (a, b) in first.0.iter_mut().zip(&mut second.0) {
            (*a, *b) = (
                _mm512_mask_mov_epi64(*a, lanes, *b),
                _mm512_mask_mov_epi64(*b, lanes, *a),
            );
        }
    }
}

impl Wide {
    /// Reduces a product of ten columns, with 2^255 = 19 modulo p.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn fold(columns: [__m512i; COLUMNS]) -> Self {
        Self(core::array::from_fn(|i| {
            let (low, high) = (columns[i], columns[i + LIMBS]);
            let three = _mm512_add_epi64(double(high), _mm512_add_epi64(high, low));
            _mm512_add_epi64(_mm512_slli_epi64::<4>(high), three)
        }))
    }

    /// Carries the bits of each limb beyond 51, all limbs at once.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn carry(self) -> Narrow {
        let Self(limbs) = self;
        let carries = limbs.map(|limb| _mm512_srli_epi64::<BITS>(limb));
        let rest = limbs.map(|limb| _mm512_and_si512(limb, broadcast(MASK)));
        Narrow(core::array::from_fn(|i| match i {
            0 => _mm512_madd52lo_epu64(rest[0], carries[LIMBS - 1], broadcast(19)),
            _ => _mm512_add_epi64(rest[i], carries[i - 1]),
        }))
    }

    /// Adds two products.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn add(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| {
            _mm512_add_epi64(self.0[i], other.0[i])
        }))
    }

    /// Subtracts two products.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn sub(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| {
            let sum = _mm512_add_epi64(self.0[i], broadcast(BIAS[i]));
            _mm512_sub_epi64(sum, other.0[i])
        }))
    }

    /// Adds the elements of `lanes` to a product, or to a result of [`Self::negate_in`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn add_in(self, lanes: u8, other: Self) -> Self {
        Self(core::array::from_fn(|i| {
            _mm512_mask_add_epi64(self.0[i], lanes, self.0[i], other.0[i])
        }))
    }

    /// Negates the elements of `lanes` of a product.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn negate_in(self, lanes: u8) -> Self {
        Self(core::array::from_fn(|i| {
            _mm512_mask_sub_epi64(self.0[i], lanes, broadcast(BIAS[i]), self.0[i])
        }))
    }

    /// Exchanges the elements of every two neighbouring lanes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn swap_neighbours(self) -> Self {
        Self(
            self.0
                .map(|limb| _mm512_shuffle_epi32::<0b01_00_11_10>(limb)),
        )
    }

    /// Returns the elements in the order of their lanes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn elements(self) -> [Element; LANES] {
        let limbs = self.0.map(|limb| store(limb));
        core::array::from_fn(|lane| Element::from_wide(limbs.map(|limb| limb[lane])))
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn zero() -> __m512i {
    _mm512_setzero_si512()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(word: u64) -> __m512i {
    _mm512_set1_epi64(word.cast_signed())
}

#[inline]
#[target_feature(enable = "avx512f")]
fn double(words: __m512i) -> __m512i {
    _mm512_add_epi64(words, words)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(words: &[u64; LANES]) -> __m512i {
    // SAFETY: 64 bytes may be read, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(vector: __m512i) -> [u64; LANES] {
    let mut words = [0; LANES];
    // SAFETY: 64 bytes may be written, and the store asks for no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), vector) };
    words
}

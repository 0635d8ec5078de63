//! Rotations of ChaCha20 (RFC 8439 §2.3), for `columns` and `rows`.

use super::vector::Vector;
use core::arch::x86_64::*;

/// Rotations of 32-bit words by whole bytes, as permutations of bytes.
///
/// Aligned, in memory and not known to the compiler (see `vector::hide`). Otherwise it makes two
/// instructions of one; and only where a function has something aligned on its stack, it
/// aligns vectors too that it puts there for want of registers, without which rounds take
/// twice as long.
#[repr(C, align(64))]
pub(super) struct Rotations {
    by_16: Vector,
    by_8: Vector,
}

impl Rotations {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn new() -> Self {
        Self {
            by_16: _mm256_broadcastsi128_si256(_mm_setr_epi8(
                2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13,
            )),
            by_8: _mm256_broadcastsi128_si256(_mm_setr_epi8(
                3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14,
            )),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn by_16(&self, x: Vector) -> Vector {
        _mm256_shuffle_epi8(x, self.by_16)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn by_8(&self, x: Vector) -> Vector {
        _mm256_shuffle_epi8(x, self.by_8)
    }
}

/// By any number of bits, `RIGHT` being 32 - `LEFT`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn rotate<const LEFT: i32, const RIGHT: i32>(x: Vector) -> Vector {
    const { assert!(LEFT + RIGHT == 32) };
    _mm256_or_si256(_mm256_slli_epi32::<LEFT>(x), _mm256_srli_epi32::<RIGHT>(x))
}

//! The sum in wide vector registers of x86-64, if the processor has them.
//!
//! A sum of 32-bit words needs both halves of each 64-bit word. The loop accumulates the 64-bit
//! words, which may overflow, and the upper halves, which do not. At the end, the sum of the lower
//! halves is the first sum minus the second sum shifted left by 32 bits. This takes three
//! instructions per vector, where summing each half separately takes four.

use std::arch::x86_64::{
    __m256i, __m512i, _mm_add_epi64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm256_add_epi64,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_setzero_si256,
    _mm256_slli_epi64, _mm256_srli_epi64, _mm256_sub_epi64, _mm512_add_epi64, _mm512_loadu_si512,
    _mm512_maskz_loadu_epi8, _mm512_reduce_add_epi64, _mm512_setzero_si512, _mm512_slli_epi64,
    _mm512_srli_epi64, _mm512_sub_epi64,
};

/// Length from which 256-bit vectors are faster than the compiler's code for
/// [`super::portable_sum`].
const AVX2_FROM: usize = 64;

/// Returns the same sum as [`super::portable_sum`] modulo 0xffff, or `None` if the processor has no
/// vectors that would be faster.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> Option<u64> {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the processor has the features that the function is compiled for.
        return Some(unsafe { sum_avx512(bytes) });
    }
    if bytes.len() >= AVX2_FROM && is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return Some(unsafe { sum_avx2(bytes) });
    }
    None
}

#[target_feature(enable = "avx512f,avx512bw")]
fn sum_avx512(bytes: &[u8]) -> u64 {
    let mut whole = _mm512_setzero_si512();
    let mut upper = _mm512_setzero_si512();
    let mut add = |words| {
        whole = _mm512_add_epi64(whole, words);
        upper = _mm512_add_epi64(upper, _mm512_srli_epi64::<32>(words));
    };
    let (blocks, rest) = bytes.as_chunks::<{ size_of::<__m512i>() }>();
    for block in blocks {
        // SAFETY: the block has as many bytes as are read. No alignment is required.
        add(unsafe { _mm512_loadu_si512(block.as_ptr().cast()) });
    }
    // One bit for each remaining byte; fewer than 64.
    let mask = (1 << rest.len()) - 1;
    // SAFETY: only bytes whose mask bit is set are read, and these are within `rest`. No alignment
    // is required.
    add(unsafe { _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast()) });
    let lower = _mm512_sub_epi64(whole, _mm512_slli_epi64::<32>(upper));
    _mm512_reduce_add_epi64(_mm512_add_epi64(lower, upper)) as u64
}

#[target_feature(enable = "avx2")]
fn sum_avx2(bytes: &[u8]) -> u64 {
    let mut whole = [_mm256_setzero_si256(); 2];
    let mut upper = [_mm256_setzero_si256(); 2];
    let mut add = |lane: usize, block: &[u8; size_of::<__m256i>()]| {
        // SAFETY: the block has as many bytes as are read. No alignment is required.
        let words = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        whole[lane] = _mm256_add_epi64(whole[lane], words);
        upper[lane] = _mm256_add_epi64(upper[lane], _mm256_srli_epi64::<32>(words));
    };
    let (blocks, rest) = bytes.as_chunks();
    let (pairs, last) = blocks.as_chunks::<2>();
    for [first, second] in pairs {
        add(0, first);
        add(1, second);
    }
    for block in last {
        add(0, block);
    }
    let whole = _mm256_add_epi64(whole[0], whole[1]);
    let upper = _mm256_add_epi64(upper[0], upper[1]);
    let lower = _mm256_sub_epi64(whole, _mm256_slli_epi64::<32>(upper));
    let sums = _mm256_add_epi64(lower, upper);
    let sums = _mm_add_epi64(
        _mm256_castsi256_si128(sums),
        _mm256_extracti128_si256::<1>(sums),
    );
    let sum = _mm_cvtsi128_si64(sums) as u64 + _mm_extract_epi64::<1>(sums) as u64;
    sum + super::portable_sum(rest)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The implementations that this processor supports.
    pub(in crate::checksum) fn ways() -> Vec<fn(&[u8]) -> u64> {
        let mut ways: Vec<fn(&[u8]) -> u64> = Vec::new();
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor has the features that the function is compiled for.
            ways.push(|bytes| unsafe { sum_avx512(bytes) });
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            ways.push(|bytes| unsafe { sum_avx2(bytes) });
        }
        ways
    }
}

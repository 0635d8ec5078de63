//! Functions with AVX-512 that leak on purpose. Nothing calls them: `cargo xtask vector-code` must
//! find the leaks in their machine code.
#![allow(unsafe_code, reason = "a gather")]

use std::arch::x86_64::{
    __m512i, _mm_cvtsi128_si64, _mm512_and_si512, _mm512_castsi512_si128, _mm512_i64gather_epi64,
    _mm512_reduce_add_epi64, _mm512_set1_epi64, _mm512_xor_si512,
};
use std::hint::black_box;

/// A function that leaks the vector that it makes of its argument.
pub(crate) type Leak = unsafe fn(i64, &[i64; 256]) -> i64;

pub(crate) const ALL: [Leak; 4] = [by_branch, by_address, by_gather, by_division];

#[target_feature(enable = "avx512f")]
fn secrets(seed: i64) -> __m512i {
    black_box(_mm512_xor_si512(
        _mm512_set1_epi64(seed),
        _mm512_set1_epi64(0x5a),
    ))
}

#[target_feature(enable = "avx512f")]
fn first(secrets: __m512i) -> i64 {
    _mm_cvtsi128_si64(_mm512_castsi512_si128(secrets))
}

#[target_feature(enable = "avx512f")]
#[inline(never)]
fn by_branch(seed: i64, table: &[i64; 256]) -> i64 {
    if first(secrets(seed)) & 1 == 1 {
        black_box(table[7])
    } else {
        0
    }
}

#[target_feature(enable = "avx512f")]
#[inline(never)]
fn by_address(seed: i64, table: &[i64; 256]) -> i64 {
    table[usize::from(first(secrets(seed)) as u8)]
}

#[target_feature(enable = "avx512f")]
#[inline(never)]
fn by_gather(seed: i64, table: &[i64; 256]) -> i64 {
    let places = _mm512_and_si512(secrets(seed), _mm512_set1_epi64(255));
    // SAFETY: each place is an index of the table.
    let found = unsafe { _mm512_i64gather_epi64::<8>(places, table.as_ptr()) };
    _mm512_reduce_add_epi64(found)
}

#[target_feature(enable = "avx512f")]
#[inline(never)]
fn by_division(seed: i64, table: &[i64; 256]) -> i64 {
    table[0] / (first(secrets(seed)) | 1).max(1)
}

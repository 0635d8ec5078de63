//! ChaCha20 of a few blocks: a vector has a row of four words of two blocks. It is as quick
//! as one instruction can follow the other.

use super::rounds::{Rotations, rotate};
use super::vector::{Vector, hide};
use crate::key::CONSTANTS;
use core::arch::x86_64::*;

/// The rows of two blocks.
type Pair = [Vector; 4];

/// The first `2 * N` blocks of key stream, two by two, each block as its halves.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
pub(super) fn blocks<const N: usize>(key: &[u32; 8], nonce: [u32; 3]) -> [Pair; N] {
    let row = |[a, b, c, d]: [u32; 4]| {
        let [a, b, c, d] = [a, b, c, d].map(u32::cast_signed);
        _mm256_broadcastsi128_si256(_mm_setr_epi32(a, b, c, d))
    };
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let [n0, n1, n2] = nonce;
    let last = row([0, n0, n1, n2]);
    let fixed = [row(CONSTANTS), row([k0, k1, k2, k3]), row([k4, k5, k6, k7])];
    let input: [Pair; N] = core::array::from_fn(|pair| {
        let [a, b, c] = fixed;
        let number = 2 * pair as i32;
        let numbers = _mm256_setr_epi32(number, 0, 0, 0, number + 1, 0, 0, 0);
        [a, b, c, _mm256_add_epi32(last, numbers)]
    });
    let mut x = input;
    let mut rotations = Rotations::new();
    hide(&mut rotations);
    for _ in 0..10 {
        round(&mut x, &rotations);
        // Diagonals become columns. The row that is ready last stays where it is.
        for [a, _, c, d] in &mut x {
            *a = _mm256_shuffle_epi32::<0b10_01_00_11>(*a);
            *c = _mm256_shuffle_epi32::<0b00_11_10_01>(*c);
            *d = _mm256_shuffle_epi32::<0b01_00_11_10>(*d);
        }
        round(&mut x, &rotations);
        for [a, _, c, d] in &mut x {
            *a = _mm256_shuffle_epi32::<0b00_11_10_01>(*a);
            *c = _mm256_shuffle_epi32::<0b10_01_00_11>(*c);
            *d = _mm256_shuffle_epi32::<0b01_00_11_10>(*d);
        }
    }
    core::array::from_fn(|pair| {
        let [a, b, c, d] =
            core::array::from_fn(|row| _mm256_add_epi32(x[pair][row], input[pair][row]));
        [
            _mm256_permute2x128_si256::<0x20>(a, b),
            _mm256_permute2x128_si256::<0x20>(c, d),
            _mm256_permute2x128_si256::<0x31>(a, b),
            _mm256_permute2x128_si256::<0x31>(c, d),
        ]
    })
}

/// A quarter round of every column, each step for all pairs before the next: steps wait for
/// one another, pairs do not.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn round<const N: usize>(x: &mut [Pair; N], rotations: &Rotations) {
    for [a, b, _, d] in x.iter_mut() {
        *a = _mm256_add_epi32(*a, *b);
        *d = rotations.by_16(_mm256_xor_si256(*d, *a));
    }
    for [_, b, c, d] in x.iter_mut() {
        *c = _mm256_add_epi32(*c, *d);
        *b = rotate::<12, 20>(_mm256_xor_si256(*b, *c));
    }
    for [a, b, _, d] in x.iter_mut() {
        *a = _mm256_add_epi32(*a, *b);
        *d = rotations.by_8(_mm256_xor_si256(*d, *a));
    }
    for [_, b, c, d] in x.iter_mut() {
        *c = _mm256_add_epi32(*c, *d);
        *b = rotate::<7, 25>(_mm256_xor_si256(*b, *c));
    }
}

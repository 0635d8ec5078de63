//! The sum in the vector registers of AArch64, which every processor has.
//!
//! The compiler makes the same of [`super::portable_sum`], but not if it optimises for size, as for
//! the static program.

use std::arch::aarch64::{
    uint64x2_t, vaddq_u64, vaddvq_u64, vdupq_n_u64, vld1q_u8, vpadalq_u32, vreinterpretq_u32_u8,
};

/// Returns the same sum as [`super::portable_sum`].
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    // SAFETY: this module exists only if the program is compiled for processors with NEON.
    unsafe { sum_neon(bytes) }
}

/// Four sums, since the next addition to one has to wait for the last.
#[target_feature(enable = "neon")]
fn sum_neon(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks();
    let (fours, last) = blocks.as_chunks();
    let zero = vdupq_n_u64(0);
    let (mut first, mut second, mut third, mut fourth) = (zero, zero, zero, zero);
    for [a, b, c, d] in fours {
        first = add(first, a);
        second = add(second, b);
        third = add(third, c);
        fourth = add(fourth, d);
    }
    for block in last {
        first = add(first, block);
    }
    let sums = vaddq_u64(vaddq_u64(first, second), vaddq_u64(third, fourth));
    vaddvq_u64(sums) + super::portable_sum(rest)
}

/// Adds four words of 32 bits, two to each sum.
#[inline]
#[target_feature(enable = "neon")]
fn add(sums: uint64x2_t, block: &[u8; 16]) -> uint64x2_t {
    // SAFETY: the 16 bytes may be read. No alignment is required.
    let bytes = unsafe { vld1q_u8(block.as_ptr()) };
    vpadalq_u32(sums, vreinterpretq_u32_u8(bytes))
}

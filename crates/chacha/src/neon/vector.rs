//! Vectors of 128 bits, and the few ways between them and memory.

use core::arch::aarch64::*;
use core::sync::atomic::{Ordering, compiler_fence};

/// Four words of 32 bits.
pub(super) type Row = uint32x4_t;

/// Bytes of a vector: a quarter of a ChaCha20 block.
pub(super) const LEN: usize = 16;

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn zero() -> Row {
    vdupq_n_u32(0)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load(bytes: &[u8; LEN]) -> Row {
    // SAFETY: the 16 bytes may be read, and the load asks for no alignment.
    vreinterpretq_u32_u8(unsafe { vld1q_u8(bytes.as_ptr()) })
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_words(words: &[u32; 4]) -> Row {
    // SAFETY: the four words may be read.
    unsafe { vld1q_u32(words.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store(bytes: &mut [u8; LEN], vector: Row) {
    // SAFETY: the 16 bytes may be written, and the store asks for no alignment.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), vreinterpretq_u8_u32(vector)) }
}

/// The same vector, made at this place and of which the compiler knows nothing: it keeps
/// two such places in order.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn pin(mut vector: Row) -> Row {
    // SAFETY: there is no instruction.
    unsafe {
        core::arch::asm!("/* {0:v} */", inout(vreg) vector, options(nomem, nostack, preserves_flags));
    }
    vector
}

/// Writes zeros that the compiler does not leave out.
#[inline]
pub(super) fn wipe(vectors: &mut [Row]) {
    for vector in vectors {
        // SAFETY: the reference may be written through and is aligned, and there is no vector
        // without a processor that has the instructions.
        unsafe { core::ptr::write_volatile(vector, zero()) };
    }
    compiler_fence(Ordering::SeqCst);
}

/// The same for bytes.
#[inline]
pub(super) fn wipe_bytes(bytes: &mut [u8; LEN]) {
    // SAFETY: the reference may be written through and is aligned.
    unsafe { core::ptr::write_volatile(bytes, [0; LEN]) };
    compiler_fence(Ordering::SeqCst);
}

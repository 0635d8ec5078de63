//! Vectors of 256 bits, and the few ways between them and memory.

use core::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256};
use core::sync::atomic::{Ordering, compiler_fence};

/// Eight words of 32 bits.
pub(super) type Vector = __m256i;

/// Bytes of a vector: half of a ChaCha20 block.
pub(super) const LEN: usize = 32;

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn zero() -> Vector {
    _mm256_setzero_si256()
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[u8; LEN]) -> Vector {
    // SAFETY: the 32 bytes may be read, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(bytes: &mut [u8; LEN], vector: Vector) {
    // SAFETY: the 32 bytes may be written, and the store asks for no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}

/// The same vector, made at this place and of which the compiler knows nothing: it keeps
/// two such places in order.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn pin(mut vector: Vector) -> Vector {
    // SAFETY: there is no instruction.
    unsafe {
        core::arch::asm!("/* {} */", inout(ymm_reg) vector, options(nomem, nostack, preserves_flags));
    }
    vector
}

/// The value in memory, and no longer known to the compiler.
#[inline]
pub(super) fn hide<T>(value: &mut T) {
    // SAFETY: there is no instruction, and so nothing is read or written.
    unsafe {
        core::arch::asm!("/* {} */", in(reg) &raw mut *value, options(nostack, preserves_flags));
    }
}

/// Writes zeros that the compiler does not leave out.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn wipe(vectors: &mut [Vector]) {
    for vector in vectors {
        // SAFETY: the reference may be written through and is aligned.
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

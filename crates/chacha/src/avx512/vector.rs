//! Vectors of 512 bits, and the few ways between them and memory.

use core::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8,
    _mm512_setzero_si512, _mm512_storeu_si512,
};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};

/// Sixteen words of 32 bits, or eight of 64.
pub(super) type Vector512 = __m512i;

/// Bytes of a vector, and of a ChaCha20 block.
pub(super) const LEN: usize = 64;

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn zero() -> Vector512 {
    _mm512_setzero_si512()
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(bytes: &[u8; LEN]) -> Vector512 {
    // SAFETY: the 64 bytes may be read, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(bytes: &mut [u8; LEN], vector: Vector512) {
    // SAFETY: the 64 bytes may be written, and the store asks for no alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// At most 64 bytes, and zeros after them.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(super) fn load_padded(bytes: &[u8]) -> Vector512 {
    match mask(bytes) {
        // A masked access to an address that is none is allowed, but slow.
        0 => zero(),
        // SAFETY: the mask lets through no byte beyond the slice, and bytes
        // that it does not let through are not accessed.
        mask => unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) },
    }
}

/// As many bytes as there is room for.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(super) fn store_cut(bytes: &mut [u8], vector: Vector512) {
    match mask(bytes) {
        0 => (),
        // SAFETY: as in `load_padded`, and the slice may be written.
        mask => unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask, vector) },
    }
}

/// A bit for each byte of the slice, up to 64.
#[inline]
fn mask(bytes: &[u8]) -> u64 {
    match bytes.len() {
        len @ ..LEN => (1 << len) - 1,
        _ => u64::MAX,
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn from_u32(words: &[u32; 16]) -> Vector512 {
    // SAFETY: 64 bytes may be read, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn from_u64(words: &[u64; 8]) -> Vector512 {
    // SAFETY: 64 bytes may be read, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn to_u64(vector: Vector512) -> [u64; 8] {
    let mut words = [0; 8];
    // SAFETY: 64 bytes may be written, and the store asks for no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), vector) };
    words
}

/// The same vector, made at this place: the compiler keeps two such places in
/// order. Otherwise it moves rounds and what is woven into them apart again.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn pin(mut vector: Vector512) -> Vector512 {
    // SAFETY: there is no instruction.
    unsafe {
        core::arch::asm!("/* {} */", inout(zmm_reg) vector, options(nomem, nostack, preserves_flags));
    }
    vector
}

/// Writes zeros that the compiler does not leave out.
#[target_feature(enable = "avx512f")]
pub(super) fn wipe(vectors: &mut [Vector512]) {
    for vector in vectors {
        // SAFETY: the reference may be written through and is aligned.
        unsafe { ptr::write_volatile(vector, zero()) };
    }
    compiler_fence(Ordering::SeqCst);
}

/// The same for a place, be something there or not.
#[target_feature(enable = "avx512f")]
pub(super) fn wipe_place<T>(place: &mut MaybeUninit<T>) {
    const { assert!(align_of::<T>() == align_of::<Vector512>()) };
    let first: *mut Vector512 = place.as_mut_ptr().cast();
    for index in 0..size_of::<T>() / LEN {
        // SAFETY: as a type's size is a multiple of its alignment, which is that of a vector,
        // the place is that many vectors, all of which may be written.
        unsafe { ptr::write_volatile(first.add(index), zero()) };
    }
    compiler_fence(Ordering::SeqCst);
}

/// The same for bytes.
pub(super) fn wipe_bytes(chunks: &mut [[u8; LEN]]) {
    for chunk in chunks {
        // SAFETY: the reference may be written through and is aligned.
        unsafe { ptr::write_volatile(chunk, [0; LEN]) };
    }
    compiler_fence(Ordering::SeqCst);
}

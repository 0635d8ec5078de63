//! Helpers for all functions of the C interface: pointers become slices, and panics errors.

use core::ffi::{CStr, c_char};
use core::slice;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{wireguard_result, wireguard_tunnel};
use crate::{Error, Result, Tunnel};

/// Runs `f`, and returns `fallback` if it panics. The tunnel ignores poisoned locks, so it can
/// still be used afterwards.
pub(super) fn guard<T>(fallback: T, f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(fallback)
}

/// Returns the tunnel of a pointer.
///
/// # Safety
/// `tunnel` is NULL, or a tunnel that is not freed while the reference lives.
pub(super) unsafe fn tunnel_of<'a>(
    tunnel: *const wireguard_tunnel,
) -> Option<&'a wireguard_tunnel> {
    // SAFETY: the pointer is NULL or valid for `'a`, as the caller guarantees.
    unsafe { tunnel.as_ref() }
}

/// Returns the string of a pointer.
///
/// # Safety
/// `text` is NULL, or ends with a NUL and does not change while the reference lives.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: it is not NULL, and the caller guarantees the rest.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Returns a buffer that is read. `None` for NULL, unless `size` is 0.
///
/// # Safety
/// `data` is NULL, or has `size` bytes, which nobody writes while the slice lives.
pub(super) unsafe fn source<'a>(data: *const u8, size: usize) -> Option<&'a [u8]> {
    if size == 0 {
        return Some(&[]);
    }
    let size = (size <= isize::MAX as usize).then_some(size)?;
    // SAFETY: it is not NULL and not longer than `isize::MAX`, and the caller guarantees the rest.
    (!data.is_null()).then(|| unsafe { slice::from_raw_parts(data, size) })
}

/// A type for which any bytes are a valid value.
pub(super) trait Plain {}
impl Plain for u8 {}
impl Plain for usize {}

/// Returns a buffer that is written. `None` for NULL, unless `count` is 0.
///
/// The caller need not have initialised the buffer. Rust's compiler cannot see that C's memory is
/// uninitialised, because both are linked as machine code, without optimisation across languages.
/// For Rust the memory has some bytes, and any bytes are a value of a [`Plain`] type. The library
/// reads only those parts of a destination that it has written, or that the caller has written
/// for work in place.
///
/// # Safety
/// `data` is NULL, or has `count` elements, which nobody else reads or writes while the slice
/// lives.
pub(super) unsafe fn destination<'a, T: Plain>(data: *mut T, count: usize) -> Option<&'a mut [T]> {
    if count == 0 {
        return Some(&mut []);
    }
    let bytes = count.checked_mul(size_of::<T>())?;
    let fits = bytes <= isize::MAX as usize && !data.is_null() && data.is_aligned();
    // SAFETY: it is not NULL, aligned and not longer than `isize::MAX`, any bytes are valid values,
    // and the caller guarantees the rest.
    fits.then(|| unsafe { slice::from_raw_parts_mut(data, count) })
}

/// Returns true if two buffers have a byte in common.
fn overlap((a, a_size): (*const u8, usize), (b, b_size): (*const u8, usize)) -> bool {
    let (a, b) = (a.addr(), b.addr());
    a < b.saturating_add(b_size) && b < a.saturating_add(a_size)
}

/// Calls a tunnel with a source and a destination. If they overlap, copies the source first.
///
/// # Safety
/// `tunnel` is NULL, or a tunnel that is not freed meanwhile. Each buffer has its size, or is NULL
/// with the size 0. Meanwhile nobody else writes the source, or reads or writes the destination.
pub(super) unsafe fn buffers(
    tunnel: *const wireguard_tunnel,
    (src, src_size): (*const u8, u32),
    (dst, dst_size): (*mut u8, u32),
    call: impl FnOnce(&Tunnel, &[u8], &mut [u8]) -> Result,
) -> wireguard_result {
    let (src_size, dst_size) = (src_size as usize, dst_size as usize);
    guard(wireguard_result::error(Error::Internal), || {
        let refused = wireguard_result::error(Error::InvalidArgument);
        // SAFETY: the caller guarantees what `tunnel_of` requires.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return refused;
        };
        let copy;
        let source = {
            // SAFETY: the caller guarantees the buffer. If it overlaps the destination, this slice
            // is copied and not used after the slice of the destination exists.
            let Some(source) = (unsafe { source(src, src_size) }) else {
                return refused;
            };
            if overlap((src, src_size), (dst, dst_size)) {
                copy = source.to_vec();
                &copy
            } else {
                source
            }
        };
        // SAFETY: the caller guarantees the buffer, and no other slice in use has any of its bytes.
        let Some(destination) = (unsafe { destination(dst, dst_size) }) else {
            return refused;
        };
        it.call(|tunnel| call(tunnel, source, destination))
    })
}

/// Calls a tunnel with a destination only.
///
/// # Safety
/// As [`buffers`].
pub(super) unsafe fn buffer(
    tunnel: *const wireguard_tunnel,
    dst: (*mut u8, u32),
    call: impl FnOnce(&Tunnel, &mut [u8]) -> Result,
) -> wireguard_result {
    let nothing = (core::ptr::null(), 0);
    // SAFETY: the caller guarantees the tunnel and the buffer. There is no source.
    unsafe { buffers(tunnel, nothing, dst, |it, _, dst| call(it, dst)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_result() {
        assert_eq!(guard(7, || panic!("caught")), 7);
    }

    #[test]
    fn buffers_overlap_when_they_have_a_byte_in_common() {
        let bytes = [0; 100];
        let at = |start: usize, size| (bytes[start..].as_ptr(), size);
        assert!(overlap(at(0, 10), at(9, 1)) && overlap(at(9, 1), at(0, 10)));
        assert!(overlap(at(5, 2), at(0, 100)) && overlap(at(3, 3), at(3, 3)));
        assert!(!overlap(at(0, 10), at(10, 1)) && !overlap(at(10, 1), at(0, 10)));
        assert!(!overlap(at(5, 0), at(5, 0)));
        assert!(!overlap((core::ptr::null(), 0), at(0, 10)));
    }
}

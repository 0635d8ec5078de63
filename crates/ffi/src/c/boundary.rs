//! What every function of the C surface needs: pointers become slices, and panics errors.

use core::ffi::{CStr, c_char};
use core::slice;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{wireguard_result, wireguard_tunnel};
use crate::{Error, Result, Tunnel};

/// Runs `f`; `fallback` if it panics. Locks that were held are not poisoned (the tunnel
/// ignores it), so that whatever else the caller has goes on.
pub(super) fn guard<T>(fallback: T, f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(fallback)
}

/// A tunnel by its pointer.
///
/// # Safety
/// `tunnel` is NULL, or a tunnel that is not freed while the reference lives.
pub(super) unsafe fn tunnel_of<'a>(
    tunnel: *const wireguard_tunnel,
) -> Option<&'a wireguard_tunnel> {
    // SAFETY: the caller vouches for it.
    unsafe { tunnel.as_ref() }
}

/// A string by its pointer.
///
/// # Safety
/// `text` is NULL, or ends with a NUL, and stays as it is while the reference lives.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: it is not NULL, and the caller vouches for the rest.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Bytes that are read. `None` for NULL, unless there are none of them.
///
/// # Safety
/// `data` is NULL, or there are `size` bytes, which nobody writes while the slice lives.
pub(super) unsafe fn source<'a>(data: *const u8, size: usize) -> Option<&'a [u8]> {
    if size == 0 {
        return Some(&[]);
    }
    let size = (size <= isize::MAX as usize).then_some(size)?;
    // SAFETY: it is not NULL, not longer than an object can be, and the caller vouches for
    // the rest.
    (!data.is_null()).then(|| unsafe { slice::from_raw_parts(data, size) })
}

/// What is a value whatever its bytes are.
pub(super) trait Plain {}
impl Plain for u8 {}
impl Plain for usize {}

/// Things that are written. `None` for NULL, unless there are none of them.
///
/// The caller need not have written them before: to Rust, memory that was made outside of it
/// has some bytes or other, and those of a [`Plain`] are a value. What C's compiler does not
/// know of them, Rust's does not learn: the two are linked as machine code, without
/// optimisation across languages. Of a destination nothing is read that has not been written,
/// here or, where a message is worked on in place, by the caller.
///
/// # Safety
/// `data` is NULL, or there are `count` of them, which nobody else reads or writes while the
/// slice lives.
pub(super) unsafe fn destination<'a, T: Plain>(data: *mut T, count: usize) -> Option<&'a mut [T]> {
    if count == 0 {
        return Some(&mut []);
    }
    let bytes = count.checked_mul(size_of::<T>())?;
    let fits = bytes <= isize::MAX as usize && !data.is_null() && data.is_aligned();
    // SAFETY: it is not NULL, aligned, not longer than an object can be, any bytes are values,
    // and the caller vouches for the rest.
    fits.then(|| unsafe { slice::from_raw_parts_mut(data, count) })
}

/// Whether two buffers have a byte in common.
fn overlap((a, a_size): (*const u8, usize), (b, b_size): (*const u8, usize)) -> bool {
    let (a, b) = (a.addr(), b.addr());
    a < b.saturating_add(b_size) && b < a.saturating_add(a_size)
}

/// Calls a tunnel with a source and a destination. Where they overlap, the source is copied
/// first.
///
/// # Safety
/// `tunnel` is NULL or a tunnel that is not freed meanwhile; each buffer has its size, or is
/// NULL with the size 0, and nobody else writes the first, or reads or writes the second,
/// meanwhile.
pub(super) unsafe fn buffers(
    tunnel: *const wireguard_tunnel,
    (src, src_size): (*const u8, u32),
    (dst, dst_size): (*mut u8, u32),
    call: impl FnOnce(&Tunnel, &[u8], &mut [u8]) -> Result,
) -> wireguard_result {
    let (src_size, dst_size) = (src_size as usize, dst_size as usize);
    guard(wireguard_result::error(Error::Internal), || {
        let refused = wireguard_result::error(Error::InvalidArgument);
        // SAFETY: the caller vouches for the tunnel.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return refused;
        };
        let copy;
        let source = {
            // SAFETY: the caller vouches for the buffer; this slice ends before another of
            // the same bytes begins, unless they have none in common.
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
        // SAFETY: the caller vouches for the buffer, any bytes are bytes, and no other slice
        // has any of them.
        let Some(destination) = (unsafe { destination(dst, dst_size) }) else {
            return refused;
        };
        it.call(|tunnel| call(tunnel, source, destination))
    })
}

/// The same with a destination alone.
///
/// # Safety
/// As [`buffers`].
pub(super) unsafe fn buffer(
    tunnel: *const wireguard_tunnel,
    dst: (*mut u8, u32),
    call: impl FnOnce(&Tunnel, &mut [u8]) -> Result,
) -> wireguard_result {
    let nothing = (core::ptr::null(), 0);
    // SAFETY: the caller vouches for the tunnel and the buffer; there is no source.
    unsafe { buffers(tunnel, nothing, dst, |it, _, dst| call(it, dst)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_answer_like_others() {
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

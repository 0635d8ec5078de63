//! Many packets in one call, and packets that are sealed and opened where they are.

use super::address::{address, taupe_address};
use crate::c::boundary::{self, destination, guard, source, tunnel_of};
use crate::c::{result_type, wireguard_result, wireguard_tunnel};
use crate::{Error, OFFSET, OVERHEAD, Outcome, Strided};

/// Bytes that a message has before its packet.
pub const TAUPE_OFFSET: usize = 16;
/// Bytes that a message has more than its packet and padding.
pub const TAUPE_OVERHEAD: usize = 32;

const _: () = assert!(TAUPE_OFFSET == OFFSET && TAUPE_OVERHEAD == OVERHEAD);

/// As wireguard_write, but the packet is in `buffer` already, `size` bytes from TAUPE_OFFSET
/// on, and the message begins at 0. `capacity` must be size + 32 at least, and 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `buffer` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_write_in_place(
    tunnel: *const wireguard_tunnel,
    buffer: *mut u8,
    size: u32,
    capacity: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the tunnel and the buffer.
    unsafe {
        boundary::buffer(tunnel, (buffer, capacity), |it, buffer| {
            it.write_in_place(buffer, size as usize)
        })
    }
}

/// As taupe_read_from, but the datagram is the first `size` bytes of `buffer`. A packet stays
/// in it, from TAUPE_OFFSET on; what is to be sent begins at 0. `capacity` must be 148 at
/// least.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `from` is NULL or an address; `buffer` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_read_in_place(
    tunnel: *const wireguard_tunnel,
    from: *const taupe_address,
    buffer: *mut u8,
    size: u32,
    capacity: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the address.
    let Ok(from) = (unsafe { address(from) }) else {
        return wireguard_result::error(Error::InvalidArgument);
    };
    // SAFETY: the caller vouches for the tunnel and the buffer.
    unsafe {
        boundary::buffer(tunnel, (buffer, capacity), |it, buffer| {
            it.read_in_place(from, buffer, size as usize)
        })
    }
}

/// Seals `count` packets: the `i`th is `src_sizes[i]` bytes from `src + i * src_stride`; its
/// message goes to `dst + i * dst_stride`, and its size to `dst_sizes[i]`.
///
/// WRITE_TO_NETWORK: `size` messages are to be sent. Without a session all packets are kept,
/// and it is one message, the initiation of a handshake. WIREGUARD_DONE: they are kept, and
/// a handshake is under way. `dst_stride` must be 32 more than the longest packet, and 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; each buffer is as long as it says, `dst` dst_stride * count
/// bytes, and none overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_write_batch(
    tunnel: *const wireguard_tunnel,
    src: *const u8,
    src_stride: usize,
    src_sizes: *const usize,
    count: usize,
    dst: *mut u8,
    dst_stride: usize,
    dst_sizes: *mut usize,
) -> wireguard_result {
    guard(wireguard_result::error(Error::Internal), || {
        let refused = wireguard_result::error(Error::InvalidArgument);
        // SAFETY: the caller vouches for the tunnel.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return refused;
        };
        // SAFETY: the caller vouches for the sizes.
        let Some(sizes) = (unsafe { sizes_of(src_sizes, count) }) else {
            return refused;
        };
        let last = sizes.last().copied().unwrap_or(0);
        let read = src_stride.checked_mul(count.saturating_sub(1));
        let read = read.and_then(|read| read.checked_add(last));
        let (Some(read), Some(written)) = (read, dst_stride.checked_mul(count)) else {
            return refused;
        };
        // SAFETY: the caller vouches for the three buffers.
        let slices = unsafe {
            (source(src, read))
                .zip(destination(dst, written))
                .zip(destination(dst_sizes, count))
        };
        let Some(((src, dst), dst_sizes)) = slices else {
            return refused;
        };
        let packets = Strided {
            stride: src_stride,
            sizes,
        };
        match it
            .tunnel
            .write_batch(src, packets, dst, dst_stride, dst_sizes)
        {
            Ok(0) => Outcome::Done.into(),
            Ok(messages) => Outcome::Network(messages).into(),
            Err(error) => it.refused(error),
        }
    })
}

/// Sizes, which are aligned, or `None`.
///
/// # Safety
/// `sizes` is NULL, or there are `count` of them, which nobody writes meanwhile.
unsafe fn sizes_of<'a>(sizes: *const usize, count: usize) -> Option<&'a [usize]> {
    if count == 0 {
        return Some(&[]);
    }
    let bytes = count.checked_mul(size_of::<usize>())?;
    let fits = bytes <= isize::MAX as usize && !sizes.is_null() && sizes.is_aligned();
    // SAFETY: it is not NULL, aligned, not longer than an object can be, and the caller
    // vouches for the rest. Others may read it too.
    fits.then(|| unsafe { core::slice::from_raw_parts(sizes, count) })
}

/// Opens `count` datagrams of one source in place: the `i`th is `sizes[i]` bytes from
/// `buffer + i * stride` (the segments of UDP_GRO, or places for recvmmsg). `results[i]` is
/// as wireguard_read's, but a packet begins TAUPE_OFFSET bytes behind its datagram.
///
/// WIREGUARD_DONE: `size` datagrams had packets in them. WIREGUARD_ERROR: none has been
/// looked at. Call wireguard_read with `src_size` 0 afterwards, until WIREGUARD_DONE.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `from` is NULL or an address; each buffer is as long as it
/// says, `buffer` stride * (count - 1) + sizes[count - 1] bytes, and none overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_read_batch(
    tunnel: *const wireguard_tunnel,
    from: *const taupe_address,
    buffer: *mut u8,
    stride: usize,
    sizes: *const usize,
    count: usize,
    results: *mut wireguard_result,
) -> wireguard_result {
    guard(wireguard_result::error(Error::Internal), || {
        let refused = wireguard_result::error(Error::InvalidArgument);
        // SAFETY: the caller vouches for the tunnel, the address and the sizes.
        let (it, from, sizes) =
            unsafe { (tunnel_of(tunnel), address(from), sizes_of(sizes, count)) };
        let (Some(it), Ok(from), Some(sizes)) = (it, from, sizes) else {
            return refused;
        };
        let last = sizes.last().copied().unwrap_or(0);
        let length = stride.checked_mul(count.saturating_sub(1));
        let Some(length) = length.and_then(|length| length.checked_add(last)) else {
            return refused;
        };
        // SAFETY: the caller vouches for the buffer.
        let Some(buffer) = (unsafe { destination(buffer, length) }) else {
            return refused;
        };
        if count > 0 && (results.is_null() || !results.is_aligned()) {
            return refused;
        }
        let mut opened = vec![Ok(Outcome::Done); count];
        let datagrams = Strided { stride, sizes };
        match it.tunnel.read_batch(from, buffer, datagrams, &mut opened) {
            Ok(packets) => {
                for (i, result) in opened.into_iter().enumerate() {
                    // SAFETY: it is not NULL, aligned, and the caller vouches for `count`
                    // of them. Written by pointer, since they may not be initialised, and
                    // not any number is an operation.
                    unsafe { results.add(i).write(it.as_result(result)) };
                }
                wireguard_result {
                    op: result_type::WIREGUARD_DONE,
                    size: packets,
                }
            }
            Err(error) => it.refused(error),
        }
    })
}

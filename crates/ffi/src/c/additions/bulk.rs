//! Batches of packets, and packets that are sealed and opened in place.

use super::address::{address, taupe_address};
use crate::c::boundary::{self, destination, guard, source, tunnel_of};
use crate::c::{result_type, wireguard_result, wireguard_tunnel};
use crate::{Error, OFFSET, OVERHEAD, Outcome, Strided};

/// Bytes of a message before its packet.
pub const TAUPE_OFFSET: usize = 16;
/// Bytes of a message besides its packet and padding.
pub const TAUPE_OVERHEAD: usize = 32;

const _: () = assert!(TAUPE_OFFSET == OFFSET && TAUPE_OVERHEAD == OVERHEAD);

/// Sends a packet as wireguard_write does, but in place: the packet is `size` bytes of `buffer`
/// from TAUPE_OFFSET on, and the message begins at 0. `capacity` must be at least size + 32, and
/// at least 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. `buffer` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_write_in_place(
    tunnel: *const wireguard_tunnel,
    buffer: *mut u8,
    size: u32,
    capacity: u32,
) -> wireguard_result {
    // SAFETY: the caller guarantees the tunnel and the buffer.
    unsafe {
        boundary::buffer(tunnel, (buffer, capacity), |it, buffer| {
            it.write_in_place(buffer, size as usize)
        })
    }
}

/// Handles a datagram as taupe_read_from does, but in place: the datagram is the first `size`
/// bytes of `buffer`. A packet begins at TAUPE_OFFSET, a datagram for the peer at 0. `capacity`
/// must be at least 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. `from` is NULL or an address. `buffer` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_read_in_place(
    tunnel: *const wireguard_tunnel,
    from: *const taupe_address,
    buffer: *mut u8,
    size: u32,
    capacity: u32,
) -> wireguard_result {
    // SAFETY: the caller guarantees the address.
    let Ok(from) = (unsafe { address(from) }) else {
        return wireguard_result::error(Error::InvalidArgument);
    };
    // SAFETY: the caller guarantees the tunnel and the buffer.
    unsafe {
        boundary::buffer(tunnel, (buffer, capacity), |it, buffer| {
            it.read_in_place(from, buffer, size as usize)
        })
    }
}

/// Seals `count` packets. Packet `i` is `src_sizes[i]` bytes at `src + i * src_stride`. Its
/// message is written to `dst + i * dst_stride`, and the message's size to `dst_sizes[i]`.
///
/// With WRITE_TO_NETWORK, the result's `size` is the number of messages to send. Without a session
/// all packets are queued, and there is one message, a handshake initiation. With WIREGUARD_DONE
/// they are queued and a handshake is in progress. `dst_stride` must be at least 32 more than the
/// longest packet, and at least 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. `src` has src_stride * (count - 1) + src_sizes[count - 1] bytes,
/// `dst` has dst_stride * count bytes, and both arrays of sizes have `count` elements. None of
/// them overlap.
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
        // SAFETY: the caller guarantees the tunnel.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return refused;
        };
        // SAFETY: the caller guarantees the sizes.
        let Some(sizes) = (unsafe { sizes_of(src_sizes, count) }) else {
            return refused;
        };
        let last = sizes.last().copied().unwrap_or(0);
        let read = src_stride.checked_mul(count.saturating_sub(1));
        let read = read.and_then(|read| read.checked_add(last));
        let (Some(read), Some(written)) = (read, dst_stride.checked_mul(count)) else {
            return refused;
        };
        // SAFETY: the caller guarantees the three buffers.
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

/// Returns an array of sizes. `None` if it is NULL or not aligned, unless `count` is 0.
///
/// # Safety
/// `sizes` is NULL, or has `count` elements, which nobody writes meanwhile.
unsafe fn sizes_of<'a>(sizes: *const usize, count: usize) -> Option<&'a [usize]> {
    if count == 0 {
        return Some(&[]);
    }
    let bytes = count.checked_mul(size_of::<usize>())?;
    let fits = bytes <= isize::MAX as usize && !sizes.is_null() && sizes.is_aligned();
    // SAFETY: it is not NULL, aligned and not longer than `isize::MAX`, and the caller guarantees
    // the rest. Other threads may read it too.
    fits.then(|| unsafe { core::slice::from_raw_parts(sizes, count) })
}

/// Opens `count` datagrams of one sender in place. Datagram `i` is `sizes[i]` bytes at
/// `buffer + i * stride`, for example a segment of UDP_GRO or a message of recvmmsg. `results[i]`
/// is the result as of wireguard_read; a packet begins TAUPE_OFFSET bytes after the start of its
/// datagram.
///
/// With WIREGUARD_DONE, the result's `size` is the number of packets. With WIREGUARD_ERROR, no
/// datagram has been handled. Afterwards call wireguard_read with `src_size` 0 until
/// WIREGUARD_DONE.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. `from` is NULL or an address. `buffer` has
/// stride * (count - 1) + sizes[count - 1] bytes, and `sizes` and `results` have `count` elements.
/// None of them overlap.
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
        // SAFETY: the caller guarantees the tunnel, the address and the sizes.
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
        // SAFETY: the caller guarantees the buffer.
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
                    // SAFETY: it is not NULL and aligned, and the caller guarantees `count`
                    // elements. This writes through the pointer, without a slice, because the
                    // elements may be uninitialised and not every number is an operation.
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

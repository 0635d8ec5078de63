//! Sockets created by io_uring.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr;

const SOCKET: u8 = 45;
const OFF_SQES: i64 = 0x1000_0000;
const GET_EVENTS: u32 = 1;

fn check(result: libc::c_long) -> io::Result<i32> {
    match i32::try_from(result) {
        Ok(result @ 0..) => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates a TCP socket of this family.
pub(super) fn socket(family: i32) -> io::Result<OwnedFd> {
    // `struct io_uring_params`: 10 words, then the offsets of both rings.
    let mut parameters = [0u32; 30];
    // SAFETY: the kernel reads and writes the 120 bytes at the address.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    let ring = check(ring)?;
    // SAFETY: the descriptor is new and has no other owner.
    let _owner = unsafe { OwnedFd::from_raw_fd(ring) };
    let (queue, entries) = (map(ring, 0, 4096)?, map(ring, OFF_SQES, 4096)?);
    let offset = |base: usize, field: usize| parameters[base + field] as usize;
    let mut entry = [0u8; 64];
    entry[0] = SOCKET;
    entry[4..8].copy_from_slice(&family.to_ne_bytes());
    entry[8..16].copy_from_slice(&u64::from(libc::SOCK_STREAM as u32).to_ne_bytes());
    // SAFETY: both pointers are mappings of a page, and the kernel's offsets lie within it.
    // Nobody else uses the ring.
    unsafe {
        ptr::copy_nonoverlapping(entry.as_ptr(), entries, 64);
        // The array of the submission queue, entry 0: index 0. Its tail: 1.
        queue.add(offset(10, 6)).cast::<u32>().write_volatile(0);
        queue.add(offset(10, 1)).cast::<u32>().write_volatile(1);
        check(libc::syscall(
            libc::SYS_io_uring_enter,
            ring,
            1,
            1,
            GET_EVENTS,
            0,
            0,
        ))?;
        // The first completion: user data, then the result.
        let completion = queue.add(offset(20, 5));
        let result = completion.add(8).cast::<i32>().read_volatile();
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(OwnedFd::from_raw_fd(result))
    }
}

fn map(ring: i32, offset: i64, length: usize) -> io::Result<*mut u8> {
    // SAFETY: the kernel chooses the address of the new mapping.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            ring,
            offset,
        )
    };
    match address {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        address => Ok(address.cast()),
    }
}

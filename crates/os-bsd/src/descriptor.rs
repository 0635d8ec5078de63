//! New descriptors, and those that this process inherited from its parent.

#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd as _, FromRawFd as _, OwnedFd, RawFd},
};

use crate::{System, layout::SOCK_CLOEXEC, wait};

/// The first number after the standard streams.
const FIRST: RawFd = 3;

/// The number of descriptors of which [`close_on_exec_except`] looks at most, as a process may have
/// the right to millions.
const MOST: RawFd = 1 << 16;

/// Creates a socket, which programs that this one starts do not inherit.
pub(crate) fn new_socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // On macOS, a program that another thread starts just now inherits it.
    let close_on_exec = match System::HERE {
        System::FreeBsd => SOCK_CLOEXEC.cast_signed(),
        System::MacOs => 0,
    };
    // SAFETY: no memory is passed, and the descriptor is new.
    let fd = unsafe { libc::socket(domain, kind | close_on_exec, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `socket` has just returned the descriptor, which nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if close_on_exec == 0 {
        wait::close_on_exec(fd.as_fd())?;
    }
    Ok(fd)
}

/// Returns a duplicate of a descriptor that the parent process passed on by number, as with
/// `WG_TUN_FD`.
///
/// The caller owns the duplicate. The original stays open until the process ends, because another
/// part of the program may own that number by now.
///
/// # Errors
///
/// `EBADF` if the number is not an open descriptor, `EMFILE` if there are too many descriptors.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes an `int` and accesses no memory. It does not change the original,
    // whoever owns it, and fails with `EBADF` if there is none.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fcntl` has just created the descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Marks the descriptors up to 65,535 close-on-exec, except the standard streams and those in `keep`, so
/// that programs that this process starts do not inherit them.
///
/// A process inherits all descriptors that its parent left open. If a program in the background
/// inherits the write end of a pipe, the pipe's reader waits for ever.
pub fn close_on_exec_except(keep: &[RawFd]) {
    // SAFETY: the function takes nothing and accesses no memory of this process.
    let end = unsafe { libc::getdtablesize() };
    for number in FIRST..end.min(MOST) {
        if keep.contains(&number) {
            continue;
        }
        // SAFETY: F_GETFD accesses no memory and fails with `EBADF` if there is no such descriptor.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: F_SETFD takes an `int` and accesses no memory. The flag takes nothing from the
            // descriptor's owner in this process.
            unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) };
        }
    }
}

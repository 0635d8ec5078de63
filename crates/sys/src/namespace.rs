//! The calling thread's network namespace.

use std::fs;
use std::io;
use std::mem::size_of_val;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use rustix::net::{AddressFamily, SocketType, socket};

/// A number that no other network namespace has or had since the system
/// started (`SO_NETNS_COOKIE`, Linux 5.14). The inode below `/proc/self/ns` is
/// given anew to the next namespace.
///
/// # Errors
///
/// `ENOPROTOOPT` on an older kernel.
pub fn network_cookie() -> io::Result<u64> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the descriptor is open, as `any` lives. The kernel writes at most
    // `length` bytes to `cookie`, which has that many, may be any 8 bytes, and is
    // borrowed by nobody else; and the number of bytes to `length`. It keeps
    // neither address.
    let status = unsafe {
        libc::getsockopt(
            any.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    match status {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The inode of the network namespace, which the kernel calls it by; another one may get
/// it when it is gone.
///
/// # Errors
///
/// Without `/proc`.
pub fn network_inode() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// What tells the network namespace from all that exist: its cookie, or on an older kernel
/// its inode, which is greater than any cookie gets.
///
/// # Errors
///
/// As [`network_inode`].
pub fn network_number() -> io::Result<u64> {
    match network_cookie() {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => network_inode(),
        cookie => cookie,
    }
}

#[cfg(test)]
mod tests {
    use super::network_cookie;
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    #[test]
    fn each_namespace_has_one_that_stays() {
        let own = network_cookie().expect("Linux 5.14");
        assert_eq!(network_cookie().expect("again"), own);
        let other = std::thread::spawn(|| {
            // SAFETY: only this thread's network namespace changes, and it ends
            // with the test.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("root");
            network_cookie().expect("there")
        });
        assert_ne!(other.join().expect("thread"), own);
    }
}

//! Forking this process, and the sockets that an executed program inherits.

use std::fs;
use std::io;
use std::mem::size_of_val;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;

use rustix::process::Pid;

/// Runs `child` in a copy of this process (`fork(2)`), which exits with the status that `child`
/// returns, or aborts if it panics. The copy has this process's memory, descriptors, signal mask
/// and handlers. Its changes to memory do not affect this process.
///
/// # Errors
///
/// `EBUSY` if this process has other threads: they would not exist in the copy, and the locks that
/// they held would stay locked for ever (`fork(2)`). Otherwise the system's, mostly `EAGAIN`; also
/// if `/proc` is not available.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<Pid> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(rustix::io::Errno::BUSY.into());
    }
    // SAFETY: this process has one thread, the calling one. Therefore no lock is held by a thread
    // that the copy lacks, and the copy may do whatever this process may do. The number of threads
    // was checked just above, and only this thread could have started another one since.
    match unsafe { libc::fork() } {
        0 => {
            let status = catch_unwind(AssertUnwindSafe(child));
            let status = status.unwrap_or_else(|_| abort());
            // SAFETY: `_exit` accepts any number and does not return. The copy skips the `exit`
            // handlers, which belong to the original process.
            unsafe { libc::_exit(status.into()) }
        }
        pid => Pid::from_raw(pid)
            .filter(|_| pid > 0)
            .ok_or_else(io::Error::last_os_error),
    }
}

/// Marks all sockets of this process close-on-exec, except Unix sockets and standard input, output
/// and error. The program that this process executes then cannot use the network in which the
/// sockets were opened.
///
/// # Errors
///
/// If `/proc` is not available.
pub fn close_network_sockets_on_exec() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number: Option<libc::c_int> = name.to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|number| *number > libc::STDERR_FILENO) else {
            continue;
        };
        let mut domain: libc::c_int = 0;
        let mut length = size_of_val(&domain) as libc::socklen_t;
        // SAFETY: `getsockopt` is defined for any number. The kernel writes at most `length` bytes
        // to `domain`, which has that many and is valid for any bytes, and the number of bytes to
        // `length`. It keeps neither address.
        let status = unsafe {
            libc::getsockopt(
                number,
                libc::SOL_SOCKET,
                libc::SO_DOMAIN,
                (&raw mut domain).cast(),
                &raw mut length,
            )
        };
        // A descriptor that is not a socket has no domain.
        if status != 0 || domain == libc::AF_UNIX {
            continue;
        }
        // SAFETY: this only changes what happens to a descriptor at `execve`; it touches no memory.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::fork;

    // The test harness has a second thread. The success of `fork` is covered by the system tests of
    // `taupe exec`.
    #[test]
    fn a_process_with_further_threads_is_not_copied() {
        let error = fork(|| 0).expect_err("two threads");
        let busy = rustix::io::Errno::BUSY.raw_os_error();
        assert_eq!(error.raw_os_error(), Some(busy));
    }
}

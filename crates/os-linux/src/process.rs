//! Processes that are copies of this one, and what programs get of it.

use std::fs;
use std::io;
use std::mem::size_of_val;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;

use rustix::process::Pid;

/// Runs `child` in a copy of this process, which ends with the status that it returns, or
/// is aborted when it panics. The copy has this process's memory, descriptors, signal mask
/// and handlers; nothing of its memory comes back.
///
/// # Errors
///
/// `EBUSY` when this process has further threads: in the copy there would be none of them,
/// and whatever locks they held would stay locked for ever (`fork(2)`). Otherwise the
/// system's, `EAGAIN` above all; and without `/proc`.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<Pid> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(rustix::io::Errno::BUSY.into());
    }
    // SAFETY: a copy of a process with one thread, which is this one, is as good as the
    // original: no lock is held by a thread that the copy lacks, so that it may do whatever
    // this process may. That there is no other thread was seen just now, and only this one
    // could have started one since.
    match unsafe { libc::fork() } {
        0 => {
            let status = catch_unwind(AssertUnwindSafe(child));
            let status = status.unwrap_or_else(|_| abort());
            // SAFETY: `_exit` takes any number and does not return. Handlers of `exit` are
            // left to the original, whose they are.
            unsafe { libc::_exit(status.into()) }
        }
        pid => Pid::from_raw(pid)
            .filter(|_| pid > 0)
            .ok_or_else(io::Error::last_os_error),
    }
}

/// Has the program that this process becomes get no socket but Unix ones and those that are
/// standard input, output and error: a socket stays in the network that it was made in.
///
/// # Errors
///
/// Without `/proc`.
pub fn keep_network_sockets() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number: Option<libc::c_int> = name.to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|number| *number > libc::STDERR_FILENO) else {
            continue;
        };
        let mut domain: libc::c_int = 0;
        let mut length = size_of_val(&domain) as libc::socklen_t;
        // SAFETY: any number may be asked about. The kernel writes at most `length` bytes to
        // `domain`, which has that many and may be any of them, and the number of bytes to
        // `length`; it keeps neither address.
        let status = unsafe {
            libc::getsockopt(
                number,
                libc::SOL_SOCKET,
                libc::SO_DOMAIN,
                (&raw mut domain).cast(),
                &raw mut length,
            )
        };
        // What is no socket has no domain.
        if status != 0 || domain == libc::AF_UNIX {
            continue;
        }
        // SAFETY: this changes what becomes of a descriptor at `execve` alone, and nobody's
        // memory.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::fork;

    // A test is a thread beside that of the harness. What `fork` does is shown where it is
    // used, by the system tests of `taupe exec`.
    #[test]
    fn a_process_with_further_threads_is_not_copied() {
        let error = fork(|| 0).expect_err("two threads");
        let busy = rustix::io::Errno::BUSY.raw_os_error();
        assert_eq!(error.raw_os_error(), Some(busy));
    }
}

//! Filters of system calls (`seccomp(2)`, `SECCOMP_SET_MODE_FILTER`).

use std::io;
use std::ptr;

/// Instruction of a classic BPF program (`struct sock_filter` of `linux/filter.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jt: u8,
    /// Instructions to skip if a comparison does not hold.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Installs a program that decides about every later system call of all threads of this process and
/// of the threads and processes that they start. It cannot be removed.
///
/// The calling thread must have `no_new_privs`, which the other threads get too. With `is_logged` the
/// kernel logs the calls to which the program returns an error (Linux 4.14).
///
/// The flag `SECCOMP_FILTER_FLAG_SPEC_ALLOW` (Linux 4.17) leaves speculation on in this process:
/// before Linux 5.16 the kernel would otherwise turn it off, which makes every program slower.
///
/// # Errors
///
/// `EINVAL` for a program that the kernel does not take, or if it lacks a flag; `EACCES` without
/// `no_new_privs`; `ENOSYS` if the kernel lacks `seccomp`. Any error leaves all threads as they were.
pub fn install(program: &[Instruction], is_logged: bool) -> io::Result<()> {
    let mut filters: Vec<libc::sock_filter> = program
        .iter()
        .map(|one| libc::sock_filter {
            code: one.code,
            jt: one.jt,
            jf: one.jf,
            k: one.k,
        })
        .collect();
    let length = libc::c_ushort::try_from(filters.len())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog {
        len: length,
        filter: filters.as_mut_ptr(),
    };
    let mut flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    if is_logged {
        flags |= libc::SECCOMP_FILTER_FLAG_LOG;
    }
    // SAFETY: `program` names `length` instructions that live until the call returns. The kernel
    // copies them and writes to none of this process's memory. A program cannot touch memory either: it
    // reads the numbers of a call and returns an action.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            ptr::from_ref(&program),
        )
    };
    match done {
        0 => Ok(()),
        // `SECCOMP_FILTER_FLAG_TSYNC` returns the id of a thread that has a filter of its own.
        1.. => Err(io::Error::other(format!(
            "thread {done} has another filter"
        ))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks whether the kernel has filters of system calls. Changes nothing.
///
/// # Errors
///
/// `ENOSYS` without `seccomp(2)`, `EINVAL` without filters (`CONFIG_SECCOMP_FILTER`), `EOPNOTSUPP`
/// before Linux 4.14.
pub fn check() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads four bytes of `action`, which live until it returns, and writes
    // nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            ptr::from_ref(&action),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Instruction, check, install};

    #[test]
    fn a_program_without_instructions_is_refused() {
        if check().is_ok() {
            rustix::thread::set_no_new_privs(true).expect("no_new_privs");
            install(&[], false).expect_err("no instruction");
            // A jump beyond the end.
            let jump = Instruction {
                code: 0x05,
                jt: 0,
                jf: 0,
                k: 7,
            };
            install(&[jump], false).expect_err("no return");
        }
    }
}

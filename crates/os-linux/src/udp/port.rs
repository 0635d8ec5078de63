//! Two UDP sockets on one port, and which of them gets a datagram.

use std::{io, os::fd::BorrowedFd};

use crate::option::{self, IntOption};

/// Has a socket that is not bound yet get, as the first of those that will share its port,
/// what begins with `first` or is empty, and the second all else. While there is no second,
/// the kernel gives the first everything.
pub(super) fn keep(socket: BorrowedFd<'_>, first: u8) -> io::Result<()> {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = [
        // Of an empty datagram this ends the program, with 0.
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0),
        instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            first.into(),
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 1),
    ];
    // The kernel takes a program only of a socket that shares.
    share(socket, true)?;
    let chosen = option::set_choice(socket, &mut program);
    share(socket, false)?;
    chosen
}

/// Whether other sockets of the same user that share too may bind the port (`SO_REUSEPORT`).
pub(super) fn share(socket: BorrowedFd<'_>, shares: bool) -> io::Result<()> {
    option::set(socket, IntOption::ReusePort, shares.into())
}

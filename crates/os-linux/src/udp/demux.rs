//! Sharing a UDP port between two sockets by the first byte of the datagrams.

use std::{io, os::fd::BorrowedFd};

use crate::socket_option::{self, IntOption};

/// Prepares a socket that is not bound yet to share its port with a second one. The first socket
/// then receives datagrams that begin with `first` or are empty, and the second all others. While
/// there is no second socket, the kernel gives everything to the first.
pub(super) fn attach(socket: BorrowedFd<'_>, first: u8) -> io::Result<()> {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = [
        // For an empty datagram this load ends the program with the result 0.
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
    // The kernel accepts a program only for a socket that has `SO_REUSEPORT`.
    set_reuseport(socket, true)?;
    let attached = socket_option::attach_reuseport_program(socket, &mut program);
    set_reuseport(socket, false)?;
    attached
}

/// Sets if other sockets of the same user that also have `SO_REUSEPORT` may bind the port.
pub(super) fn set_reuseport(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    socket_option::set(socket, IntOption::ReusePort, on.into())
}

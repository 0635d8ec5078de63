//! recvmsg(2) and sendmsg(2) without allocation.

#![allow(unsafe_code)]

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
};

use crate::{
    System,
    control_message::{self, LocalEnd, RECEIVE_LEN},
    endpoint::{self, EndpointBytes, LONGEST},
    layout::{MSG_CTRUNC, MSG_TRUNC},
};

/// A datagram that was read.
pub(super) struct Incoming {
    pub(super) len: usize,
    /// True if the buffer was too short, and the rest is lost.
    pub(super) is_cut: bool,
    /// `None` if the address is of another family.
    pub(super) from: Option<SocketAddr>,
    pub(super) local: Option<LocalEnd>,
}

/// Reads one datagram.
pub(super) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Incoming> {
    let mut name = [0_u8; LONGEST];
    let mut control = [0_u8; RECEIVE_LEN];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut message = libc::msghdr {
        msg_name: name.as_mut_ptr().cast(),
        msg_namelen: name.len() as libc::socklen_t,
        msg_iov: &raw mut part,
        msg_iovlen: 1,
        msg_control: control.as_mut_ptr().cast(),
        msg_controllen: control.len() as libc::socklen_t,
        msg_flags: 0,
    };
    // SAFETY: the kernel reads `message` and the one `iovec` that it names, and writes at most as many
    // bytes as the lengths next to the addresses of `name`, `control` and `buffer` say. All of them are
    // borrowed exclusively, or owned, by this function until the call returns. They need no
    // alignment, because the kernel copies bytes. The descriptor is open while borrowed.
    let read = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) };
    let len = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    let flags = message.msg_flags.cast_unsigned();
    // The kernel may return the length of a longer address than it has written.
    let name = name.get(..message.msg_namelen as usize).unwrap_or(&name);
    let control = control.get(..message.msg_controllen as usize);
    Ok(Incoming {
        len: len.min(buffer.len()),
        is_cut: flags & MSG_TRUNC != 0,
        from: endpoint::decode(System::HERE, name),
        local: control
            .filter(|_| flags & MSG_CTRUNC == 0)
            .and_then(|control| control_message::decode(System::HERE, control)),
    })
}

/// Sends one datagram, with control messages or none. The kernel sends the complete datagram or nothing.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    to: &EndpointBytes,
    control: &[u8],
    datagram: &[u8],
) -> io::Result<()> {
    let to = to.as_bytes();
    let mut part = libc::iovec {
        iov_base: datagram.as_ptr().cast_mut().cast(),
        iov_len: datagram.len(),
    };
    let message = libc::msghdr {
        msg_name: to.as_ptr().cast_mut().cast(),
        msg_namelen: to.len() as libc::socklen_t,
        msg_iov: &raw mut part,
        msg_iovlen: 1,
        // FreeBSD refuses control messages of length 0 (`sendit` in `sys/kern/uipc_syscalls.c`).
        msg_control: match control {
            [] => ptr::null_mut(),
            control => control.as_ptr().cast_mut().cast(),
        },
        msg_controllen: control.len() as libc::socklen_t,
        msg_flags: 0,
    };
    // SAFETY: sendmsg(2) only reads: `message`, the one `iovec` that it names, and as many bytes as the
    // lengths next to the addresses of `to`, `control` and `datagram` say, which are borrowed until
    // the call returns. They need no alignment, because the kernel copies bytes. The descriptor is
    // open while borrowed.
    match unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

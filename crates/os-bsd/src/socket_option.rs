//! Numbers of socket options, for `setsockopt` and `getsockopt`.

use crate::{
    System,
    layout::{
        self, IP_BOUND_IF, IP_RECVDSTADDR, IP_RECVPKTINFO, IPPROTO_IP, IPPROTO_IPV6, IPV6_BOUND_IF,
        SO_RCVBUF, SO_RERROR, SO_SETFIB, SO_SNDBUF, SO_USER_COOKIE, SOL_SOCKET, SYSPROTO_CONTROL,
        UTUN_OPT_IFNAME,
    },
};

/// A socket option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketOption {
    /// The level.
    pub level: i32,
    /// The option's number in the level.
    pub name: i32,
}

impl SocketOption {
    const fn new(level: u32, name: u32) -> Self {
        Self {
            level: level.cast_signed(),
            name: name.cast_signed(),
        }
    }
}

/// The routing table of a socket, an `int` (`SO_SETFIB`, FreeBSD). For a socket of IP, lookups use
/// this table. For a routing socket, requests are about it.
pub const SET_FIB: SocketOption = SocketOption::new(SOL_SOCKET, SO_SETFIB);

/// Bytes of the receive buffer, an `int` (`SO_RCVBUF`).
pub const RECEIVE_BUFFER: SocketOption = SocketOption::new(SOL_SOCKET, SO_RCVBUF);

/// Bytes of the send buffer, an `int` (`SO_SNDBUF`).
pub const SEND_BUFFER: SocketOption = SocketOption::new(SOL_SOCKET, SO_SNDBUF);

/// Reads return `ENOBUFS` after the receive buffer was full, an `int` (`SO_RERROR`, FreeBSD 14).
pub const REPORT_OVERFLOW: SocketOption = SocketOption::new(SOL_SOCKET, SO_RERROR);

/// A number that firewalls match, an `int` (`SO_USER_COOKIE`, FreeBSD).
pub const USER_COOKIE: SocketOption = SocketOption::new(SOL_SOCKET, SO_USER_COOKIE);

/// The index of the interface through which a socket sends and receives IPv4, an `int`
/// (`IP_BOUND_IF`, macOS).
pub const BOUND_INTERFACE_V4: SocketOption = SocketOption::new(IPPROTO_IP, IP_BOUND_IF);

/// The same for IPv6 (`IPV6_BOUND_IF`, macOS).
pub const BOUND_INTERFACE_V6: SocketOption = SocketOption::new(IPPROTO_IPV6, IPV6_BOUND_IF);

/// The name of a utun device (`UTUN_OPT_IFNAME`, macOS).
pub const UTUN_NAME: SocketOption = SocketOption::new(SYSPROTO_CONTROL, UTUN_OPT_IFNAME);

/// Receive the destination of IPv4 datagrams as [`control_message`](crate::control_message), an `int`
/// (`IP_RECVDSTADDR` on FreeBSD, `IP_RECVPKTINFO` on macOS).
#[must_use]
pub const fn receive_destination_v4(system: System) -> SocketOption {
    let number = match system {
        System::FreeBsd => IP_RECVDSTADDR,
        System::MacOs => IP_RECVPKTINFO,
    };
    SocketOption::new(IPPROTO_IP, number)
}

/// Receive the destination and the interface of IPv6 datagrams, an `int` (`IPV6_RECVPKTINFO` of RFC
/// 3542).
#[must_use]
pub const fn receive_packet_info_v6(system: System) -> SocketOption {
    let number = layout::of(system).numbers.receive_packet_info_in6;
    SocketOption::new(IPPROTO_IPV6, number)
}

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
mod live {
    #![allow(unsafe_code)]

    use std::{
        ffi::c_int,
        io,
        os::fd::{AsRawFd as _, BorrowedFd},
    };

    use super::SocketOption;

    /// The smallest buffer in bytes that is asked for. The default may be smaller.
    const SMALLEST_BUFFER: usize = 16 << 10;

    /// Sets an option whose value is an `int`.
    pub(crate) fn set(fd: BorrowedFd<'_>, option: SocketOption, value: u32) -> io::Result<()> {
        let value = value.cast_signed();
        // SAFETY: the kernel reads an `int` of the length given. The descriptor is open while
        // borrowed.
        let done = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                option.level,
                option.name,
                (&raw const value).cast(),
                size_of::<c_int>() as _,
            )
        };
        match done {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Returns an option whose value is an `int`.
    pub(crate) fn get(fd: BorrowedFd<'_>, option: SocketOption) -> io::Result<u32> {
        let mut value: c_int = 0;
        let mut length = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `value`, which is an `int`, and the
        // number of written bytes into `length`. The descriptor is open while borrowed.
        let done = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                option.level,
                option.name,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        match done {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(value.cast_unsigned()),
        }
    }

    /// Sets the size of a buffer to the largest that the system permits, and not above `size`. Both
    /// systems refuse a size above a part of `kern.ipc.maxsockbuf`, which is 2 MiB on FreeBSD
    /// (`sbreserve_locked` in `sys/kern/uipc_sockbuf.c`).
    pub(crate) fn set_largest(fd: BorrowedFd<'_>, option: SocketOption, mut size: usize) {
        while size >= SMALLEST_BUFFER {
            let number = u32::try_from(size).unwrap_or(u32::MAX >> 1);
            if set(fd, option, number).is_ok() {
                return;
            }
            size /= 2;
        }
    }
}

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
pub(crate) use live::{get, set, set_largest};

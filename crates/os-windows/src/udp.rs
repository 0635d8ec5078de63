//! UDP sockets.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::windows::io::AsRawSocket as _;
use std::ptr;
use windows_sys::Win32::Networking::WinSock::{
    SIO_UDP_CONNRESET, SIO_UDP_NETRESET, SO_EXCLUSIVEADDRUSE, SOCKET, SOL_SOCKET, WSAGetLastError,
    WSAIoctl, setsockopt,
};

/// Binds a non-blocking socket to a port, which no other socket can then bind with any option. An
/// IPv6 socket does not receive IPv4.
///
/// # Errors
///
/// [`io::ErrorKind::AddrInUse`] if the port is in use; otherwise the system's.
pub fn bind(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    let yes = 1_i32;
    // SAFETY: the socket is open, and the option value has the size that is passed.
    let set = unsafe {
        setsockopt(
            socket.as_raw_socket() as SOCKET,
            SOL_SOCKET,
            SO_EXCLUSIVEADDRUSE,
            (&raw const yes).cast(),
            size_of_val(&yes) as i32,
        )
    };
    if set != 0 {
        // SAFETY: the call has no arguments, and reads the thread's last error.
        return Err(io::Error::from_raw_os_error(unsafe { WSAGetLastError() }));
    }
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    for report in [SIO_UDP_CONNRESET, SIO_UDP_NETRESET] {
        ignore(&socket, report);
    }
    socket.set_nonblocking(true)?;
    socket.bind(&at.into()).map_err(|error| {
        // The system's error if one of the two sockets requests exclusive use.
        match error.kind() {
            io::ErrorKind::PermissionDenied => io::Error::new(
                io::ErrorKind::AddrInUse,
                "another program has the port, or the system keeps it for itself",
            ),
            _ => error,
        }
    })?;
    Ok(socket.into())
}

/// Prevents receive errors that report an undeliverable earlier datagram, which an attacker on the
/// path can forge. On systems that do not support this the errors remain.
fn ignore(socket: &Socket, report: u32) {
    let (no, mut returned) = (0_i32, 0);
    // SAFETY: the socket is open. The input value has the size that is passed and is only read;
    // `returned` is valid for writing; nothing is overlapped.
    unsafe {
        WSAIoctl(
            socket.as_raw_socket() as SOCKET,
            report,
            (&raw const no).cast(),
            size_of_val(&no) as u32,
            ptr::null_mut(),
            0,
            &raw mut returned,
            ptr::null_mut(),
            None,
        )
    };
}

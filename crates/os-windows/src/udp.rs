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

/// A socket that never waits, on a port that nobody else may then bind, with whatever options.
/// One of IPv6 has nothing of IPv4.
///
/// # Errors
///
/// [`io::ErrorKind::AddrInUse`] if somebody has the port, or what the system says.
pub fn bind(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    let yes = 1_i32;
    // SAFETY: the socket is open, and the option has a number's size, as announced.
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
        // SAFETY: it takes nothing, and reads what the thread's last call has left.
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
        // What the system says where one of the two wants the port for itself.
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

/// Turns off that a socket fails to receive because a datagram of its own has reached nobody,
/// which anybody on the way can pretend. Where the system does not know that, it goes on failing.
fn ignore(socket: &Socket, report: u32) {
    let (no, mut returned) = (0_i32, 0);
    // SAFETY: the socket is open; the value has a number's size, as announced, and is read; what
    // the call must write has a place; nothing is overlapped.
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

//! Socket options that `rustix` does not have.

use std::{
    ffi::c_int,
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Options whose value is an int.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOption {
    /// `SO_MARK`.
    Mark,
    /// `IP_PKTINFO`.
    PacketInfoV4,
    /// `IPV6_RECVPKTINFO`.
    PacketInfoV6,
    /// `IP_RECVERR`.
    ReceiveErrorsV4,
    /// `IPV6_RECVERR`.
    ReceiveErrorsV6,
    /// `UDP_GRO`.
    Gro,
    /// `UDP_SEGMENT`.
    Segment,
    /// `SO_REUSEPORT`.
    ReusePort,
    /// `NETLINK_LISTEN_ALL_NSID`.
    ListenAllNamespaces,
    /// `NETLINK_EXT_ACK`.
    ExtendedAck,
    /// `NETLINK_CAP_ACK`.
    CappedAck,
    /// `NETLINK_GET_STRICT_CHK`.
    StrictCheck,
}

impl IntOption {
    fn level_and_name(self) -> (c_int, c_int) {
        match self {
            Self::Mark => (libc::SOL_SOCKET, libc::SO_MARK),
            Self::PacketInfoV4 => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            Self::PacketInfoV6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            Self::ReceiveErrorsV4 => (libc::IPPROTO_IP, libc::IP_RECVERR),
            Self::ReceiveErrorsV6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
            Self::Gro => (libc::SOL_UDP, libc::UDP_GRO),
            Self::Segment => (libc::SOL_UDP, libc::UDP_SEGMENT),
            Self::ReusePort => (libc::SOL_SOCKET, libc::SO_REUSEPORT),
            Self::ListenAllNamespaces => (libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID),
            Self::ExtendedAck => (libc::SOL_NETLINK, libc::NETLINK_EXT_ACK),
            Self::CappedAck => (libc::SOL_NETLINK, libc::NETLINK_CAP_ACK),
            Self::StrictCheck => (libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK),
        }
    }
}

/// Sets an option.
///
/// # Errors
///
/// The kernel's: `ENOPROTOOPT` if it does not know the option.
pub fn set(socket: BorrowedFd<'_>, option: IntOption, value: c_int) -> io::Result<()> {
    let (level, name) = option.level_and_name();
    let size = size_of::<c_int>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: the kernel reads `size` bytes at `value`, which is a live int.
    // The descriptor is open while borrowed.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, size) };
    check(result)
}

/// Reads an option.
///
/// # Errors
///
/// The kernel's: `ENOPROTOOPT` if it does not know the option.
pub fn get(socket: BorrowedFd<'_>, option: IntOption) -> io::Result<c_int> {
    let (level, name) = option.level_and_name();
    let mut value: c_int = 0;
    let mut size = size_of::<c_int>() as libc::socklen_t;
    let place = (&raw mut value).cast();
    // SAFETY: the kernel writes at most `size` bytes at `place`, which is a
    // live int that nothing else refers to. The descriptor is open while
    // borrowed.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, place, &raw mut size) };
    check(result)?;
    Ok(value)
}

/// Binds a socket to the interface of this name (`SO_BINDTODEVICE`; since Linux 5.7 without rights).
///
/// # Errors
///
/// The kernel's: `ENODEV` if there is no such interface, `EPERM` without the right.
pub fn bind_to_interface(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: the kernel reads at most `name.len()` bytes at `name`, which is live, and adds the NUL
    // itself. The descriptor is open while borrowed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    check(result)
}

/// Attaches a program that selects which of the sockets on a shared port receives a datagram
/// (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5). The program returns an index into the sockets in the
/// order in which they were bound.
pub(super) fn attach_reuseport_program(
    socket: BorrowedFd<'_>,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_mut_ptr(),
    };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes at `program`, which is a live `sock_fprog`, and as many
    // instructions as it counts from the slice that it points to, which is borrowed. The kernel
    // checks the instructions and keeps a copy. The descriptor is open while borrowed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size,
        )
    };
    check(result)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

//! The `ioctl` requests of `/dev/net/tun` and of interfaces.

use std::{
    ffi::c_int,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// `struct ifreq`: an interface name and up to 24 bytes that depend on the request; 32-bit kernels
/// read 16 of them.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct Ifreq {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

impl Ifreq {
    /// Returns a request for the interface `name`, or `None` if the name contains a NUL byte or has
    /// `IFNAMSIZ` bytes or more.
    pub(super) fn new(name: &str) -> Option<Self> {
        let mut request = Self::default();
        let length = name.len();
        if length >= libc::IFNAMSIZ || name.as_bytes().contains(&0) {
            return None;
        }
        request.name[..length].copy_from_slice(name.as_bytes());
        Some(request)
    }

    pub(super) fn name(&self) -> String {
        let end = self.name.iter().position(|&byte| byte == 0);
        String::from_utf8_lossy(&self.name[..end.unwrap_or(libc::IFNAMSIZ)]).into_owned()
    }

    pub(super) fn flags(&self) -> c_int {
        c_int::from(i16::from_ne_bytes([self.value[0], self.value[1]]))
    }

    pub(super) fn set_flags(&mut self, flags: c_int) {
        self.value[..2].copy_from_slice(&(flags as i16).to_ne_bytes());
    }

    pub(super) fn set_mtu(&mut self, mtu: c_int) {
        self.value[..4].copy_from_slice(&mtu.to_ne_bytes());
    }
}

/// Requests that take a `struct ifreq`.
#[derive(Clone, Copy)]
pub(super) enum InterfaceRequest {
    /// `TUNSETIFF`: creates an interface or attaches to one.
    TunSet,
    /// `TUNGETIFF`: reads the current name and mode.
    TunGet,
    /// `SIOCGIFFLAGS`.
    Flags,
    /// `SIOCSIFFLAGS`.
    SetFlags,
    /// `SIOCSIFMTU`.
    SetMtu,
}

/// Performs an interface request.
pub(super) fn interface(
    fd: BorrowedFd<'_>,
    request: InterfaceRequest,
    ifreq: &mut Ifreq,
) -> io::Result<()> {
    let code = match request {
        InterfaceRequest::TunSet => libc::TUNSETIFF as _,
        InterfaceRequest::TunGet => libc::TUNGETIFF as _,
        InterfaceRequest::Flags => libc::SIOCGIFFLAGS as _,
        InterfaceRequest::SetFlags => libc::SIOCSIFFLAGS as _,
        InterfaceRequest::SetMtu => libc::SIOCSIFMTU as _,
    };
    // SAFETY: each of these requests reads and writes at most one `struct
    // ifreq` behind its argument, and `Ifreq` is at least as large, initialised
    // and exclusively borrowed. The descriptor is open while borrowed.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, &raw mut *ifreq) })?;
    Ok(())
}

/// `TUNGETIFF`: returns the name of a TUN's interface.
pub(super) fn tun_name(tun: BorrowedFd<'_>) -> io::Result<String> {
    let mut request = Ifreq::default();
    interface(tun, InterfaceRequest::TunGet, &mut request)?;
    Ok(request.name())
}

/// `TUNSETVNETHDRSZ`: sets the bytes of the header before each packet.
pub(super) fn set_header_len(tun: BorrowedFd<'_>, len: c_int) -> io::Result<()> {
    // SAFETY: the request reads one int at its address argument, and `len` is one.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const len) })?;
    Ok(())
}

/// `TUNSETOFFLOAD`: sets the offloads that the reader supports. Fails with `EINVAL` and changes
/// nothing if the kernel does not know one of the bits.
pub(super) fn set_offload(tun: BorrowedFd<'_>, features: u32) -> io::Result<()> {
    let features = libc::c_ulong::from(features);
    // SAFETY: the request takes its argument by value and touches no memory.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD as _, features) })?;
    Ok(())
}

/// `TUNSETSTEERINGEBPF`: sets the program that chooses the queue of each packet.
pub(super) fn set_steering(tun: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let program: c_int = program.as_raw_fd();
    // SAFETY: the request reads one int at its address argument, and `program` is one. The kernel
    // takes a reference to the program; both descriptors are open while borrowed.
    check(unsafe {
        libc::ioctl(
            tun.as_raw_fd(),
            libc::TUNSETSTEERINGEBPF as _,
            &raw const program,
        )
    })?;
    Ok(())
}

/// `SIOCOUTQ`: returns the bytes of memory of unsent datagrams.
pub(super) fn unsent(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes one int at its address argument, and `bytes` is one, exclusively
    // borrowed. The descriptor is open while borrowed. `SIOCOUTQ` has the number of `TIOCOUTQ`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ as _, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// `TUNGETDEVNETNS`: returns the network namespace of a TUN's interface.
pub(super) fn tun_namespace(tun: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    namespace(tun, libc::TUNGETDEVNETNS as u32)
}

/// `SIOCGSKNS`: returns the network namespace of a socket.
pub(super) fn socket_namespace(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SIOCGSKNS: u32 = 0x894c;
    namespace(socket, SIOCGSKNS)
}

fn namespace(fd: BorrowedFd<'_>, request: u32) -> io::Result<OwnedFd> {
    // SAFETY: neither request has an argument; the kernel ignores the zero.
    let namespace = check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, 0) })?;
    // SAFETY: the kernel created this descriptor for this call, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

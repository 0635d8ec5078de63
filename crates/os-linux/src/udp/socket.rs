//! Binding and configuring UDP sockets.

use std::{
    ffi::c_int,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, Shutdown, SocketFlags, SocketType, bind, getsockname, ipproto, shutdown,
        socket_with, sockopt,
    },
};
use taupe_packet::ip::Family;

use super::{BindError, Options, message};
use crate::{
    ioctl,
    socket_option::{self, IntOption},
};

/// An unconnected UDP socket bound to every local address of one family. Any number of threads may
/// send and receive.
#[derive(Debug)]
pub struct Socket {
    pub(super) fd: OwnedFd,
    port: u16,
    gro: bool,
    gso: bool,
    /// Sends until batching is tried again.
    pub(super) gso_pause: AtomicU32,
    pub(super) gso_refusals: AtomicU64,
    /// Refusals since a batch was last sent.
    pub(super) consecutive_refusals: AtomicU32,
    /// True if `sendmmsg` is available and permitted.
    pub(super) has_sendmmsg: bool,
    /// Set if `recvmmsg` is not available or not permitted.
    pub(super) lacks_recvmmsg: AtomicBool,
    pub(super) stopped: AtomicBool,
}

/// A bound socket and the results of probing it, for another process.
#[derive(Debug)]
pub struct SocketParts {
    /// The socket.
    pub fd: OwnedFd,
    /// Its local port.
    pub port: u16,
    /// True if `UDP_GRO` is on.
    pub gro: bool,
    /// True if `UDP_SEGMENT` is available.
    pub gso: bool,
}

/// Reads the kernel's version, which a confined process cannot do later ([`Socket::bind`]).
pub fn read_kernel_version() {
    LazyLock::force(&HAS_CORRECT_GRO);
}

/// True if this kernel's `UDP_GRO` is correct.
static HAS_CORRECT_GRO: LazyLock<bool> =
    LazyLock::new(|| has_correct_gro(rustix::system::uname().release().to_bytes()));

impl Socket {
    /// Binds `port`, or a free port if it is 0.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind(family: Family, port: u16, options: Options) -> Result<Self, BindError> {
        Self::bound(open(family, options)?, family, port, options)
    }

    /// Binds a socket that was opened with the same family and options.
    pub(super) fn bound(
        fd: OwnedFd,
        family: Family,
        port: u16,
        options: Options,
    ) -> Result<Self, BindError> {
        let gso = options.gso && socket_option::get(fd.as_fd(), IntOption::Segment).is_ok();
        let gro = options.gro
            && *HAS_CORRECT_GRO
            && socket_option::set(fd.as_fd(), IntOption::Gro, 1).is_ok();
        let any = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        bind(&fd, &SocketAddr::from((any, port))).map_err(|error| match error {
            Errno::ADDRINUSE => BindError::PortInUse(port),
            error => failed("bind")(error),
        })?;
        let address = getsockname(&fd).map_err(failed("getsockname"))?;
        let address = SocketAddr::try_from(address).map_err(failed("getsockname"))?;
        Ok(Self::from_parts(SocketParts {
            fd,
            port: address.port(),
            gro,
            gso,
        }))
    }

    /// Returns the socket for another process, which continues with [`Self::from_parts`].
    pub fn into_parts(self) -> SocketParts {
        SocketParts {
            fd: self.fd,
            port: self.port,
            gro: self.gro,
            gso: self.gso,
        }
    }

    /// Continues with a socket that another process has bound.
    pub fn from_parts(parts: SocketParts) -> Self {
        let SocketParts { fd, port, gro, gso } = parts;
        Self {
            has_sendmmsg: message::can_sendmmsg(fd.as_fd()),
            fd,
            port,
            gro,
            gso,
            gso_pause: AtomicU32::new(0),
            gso_refusals: AtomicU64::new(0),
            consecutive_refusals: AtomicU32::new(0),
            lacks_recvmmsg: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    /// Returns the local port.
    pub fn local_port(&self) -> u16 {
        self.port
    }

    /// Returns true if the next send uses segmentation offload.
    pub fn gso(&self) -> bool {
        self.gso && self.gso_pause.load(Ordering::Relaxed) == 0
    }

    /// Returns true if received datagrams may be merged into batches.
    pub fn gro(&self) -> bool {
        self.gro
    }

    /// Number of batches that the kernel refused and that were sent as single datagrams instead.
    pub fn gso_refusals(&self) -> u64 {
        self.gso_refusals.load(Ordering::Relaxed)
    }

    /// Returns the memory of all datagrams that the network card's driver has not released
    /// (`SIOCOUTQ`), in bytes. It is more than their length: up to twice as much for datagrams that
    /// are sent one by one.
    ///
    /// # Errors
    ///
    /// None are known.
    pub fn unsent(&self) -> io::Result<usize> {
        ioctl::unsent(self.as_fd())
    }

    /// Makes every waiting and later [`Socket::receive`] return
    /// [`Receive::Stopped`](super::Receive::Stopped).
    pub fn shutdown(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Fails with `ENOTCONN`, because the socket has no peer, but nevertheless wakes every
        // reader.
        let _ = shutdown(&self.fd, Shutdown::Read);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Changes `SO_MARK` of the packets that a socket sends from now on; 0 clears it.
///
/// # Errors
///
/// `EPERM` without `CAP_NET_ADMIN`.
pub fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    socket_option::set(socket, IntOption::Mark, mark as c_int)
}

/// Opens a socket without binding it.
pub(super) fn open(family: Family, options: Options) -> Result<OwnedFd, BindError> {
    let domain = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let fd = match socket_with(domain, SocketType::DGRAM, flags, Some(ipproto::UDP)) {
        Err(Errno::AFNOSUPPORT) => return Err(BindError::FamilyUnsupported(family)),
        fd => fd.map_err(failed("socket"))?,
    };
    set_up(&fd, family).map_err(failed("setting up a UDP socket"))?;
    if let Some(size) = options.buffers {
        grow_buffers(&fd, size);
    }
    if options.mark != 0 {
        set_mark(fd.as_fd(), options.mark).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::PERM) => BindError::Mark(options.mark),
            _ => failed("SO_MARK")(error),
        })?;
    }
    Ok(fd)
}

fn set_up(fd: &OwnedFd, family: Family) -> io::Result<()> {
    // Outer packets may be fragmented, as with the kernel's WireGuard: setting DF would lose
    // packets on paths with a small MTU.
    match family {
        Family::V4 => {
            socket_option::set(fd.as_fd(), IntOption::PacketInfoV4, 1)?;
            sockopt::set_ip_recvtos(fd, true)?;
            sockopt::set_ip_mtu_discover(fd, sockopt::Ipv4PathMtuDiscovery::DONT)?;
        }
        Family::V6 => {
            sockopt::set_ipv6_v6only(fd, true)?;
            socket_option::set(fd.as_fd(), IntOption::PacketInfoV6, 1)?;
            sockopt::set_ipv6_recvtclass(fd, true)?;
            sockopt::set_ipv6_mtu_discover(fd, sockopt::Ipv6PathMtuDiscovery::DONT)?;
        }
    }
    Ok(())
}

/// Requests large buffers. Only `CAP_NET_ADMIN` gets more than the system's limit; smaller buffers
/// than requested are not an error.
fn grow_buffers(fd: &OwnedFd, size: usize) {
    if sockopt::set_socket_recv_buffer_size_force(fd, size).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(fd, size);
    }
    if sockopt::set_socket_send_buffer_size_force(fd, size).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(fd, size);
    }
}

/// Returns true if this kernel release merges received datagrams correctly (since Linux 5.12).
fn has_correct_gro(release: &[u8]) -> bool {
    let release = String::from_utf8_lossy(release);
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
    matches!((number(), number()), (Some(major), Some(minor)) if (major, minor) >= (5, 12))
}

pub(super) fn failed<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> BindError {
    move |error| BindError::Io {
        what: what.into(),
        source: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        for release in [
            "5.12.0",
            "5.12-rc1",
            "5.100.1-arch",
            "6.1.0-18-amd64",
            "10.0",
        ] {
            assert!(has_correct_gro(release.as_bytes()), "{release}");
        }
        for release in ["5.11.22", "4.19.0", "5", "", "x.y", "5.x"] {
            assert!(!has_correct_gro(release.as_bytes()), "{release}");
        }
    }
}

//! Binding UDP sockets and setting them up.

use std::{
    ffi::c_int,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, Shutdown, SocketFlags, SocketType, bind, getsockname, ipproto, shutdown,
        socket_with, sockopt,
    },
};
use taupe_packet::ip::Family;

use super::{BindError, Options, message, port};
use crate::option::{self, IntOption};

/// An unconnected UDP socket on every local address of one family. Any number
/// of threads may send and receive.
#[derive(Debug)]
pub struct Socket {
    pub(super) fd: OwnedFd,
    port: u16,
    gro: bool,
    gso: bool,
    /// Sends to go before batches are tried again.
    pub(super) gso_pause: AtomicU32,
    pub(super) gso_refusals: AtomicU64,
    /// Refusals since a batch last went out.
    pub(super) refused_in_a_row: AtomicU32,
    /// The system has `sendmmsg`, and lets it be used.
    pub(super) sends_many: bool,
    /// The system has no `recvmmsg`, or does not let it be used.
    pub(super) receives_singly: AtomicBool,
    pub(super) stopped: AtomicBool,
    /// How another socket is bound beside it, where datagrams can be told apart.
    beside: Option<(Family, Options)>,
}

impl Socket {
    /// Binds `port`, or a free one when it is 0.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind(family: Family, port: u16, options: Options) -> Result<Self, BindError> {
        let fd = open(family, options)?;
        let keeps = options.keeps;
        let tells_apart = keeps.is_some_and(|first| port::keep(fd.as_fd(), first).is_ok());
        let mut socket = Self::bound(fd, family, port, options)?;
        socket.beside = tells_apart.then_some((family, options));
        Ok(socket)
    }

    /// Binds a second socket to the same port, with the same options but for its buffers. It
    /// gets, from the moment it is bound, all datagrams but those that are empty or begin
    /// with [`Options::keeps`] of this one; of several that the kernel has merged, the first
    /// decides, and what is sent to a broadcast or multicast address comes to both. A
    /// program of the same user can bind the port too from now on, if it asks for that
    /// (`SO_REUSEPORT`).
    ///
    /// # Errors
    ///
    /// See [`BindError`]; [`io::ErrorKind::Unsupported`] where the system cannot tell
    /// datagrams apart (before Linux 4.5) or this socket was not to keep any.
    pub fn bind_beside(&self, buffers: Option<usize>) -> Result<Self, BindError> {
        let unsupported = || failed("telling datagrams apart")(io::ErrorKind::Unsupported);
        let (family, options) = self.beside.ok_or_else(unsupported)?;
        let options = Options { buffers, ..options };
        let fd = open(family, options)?;
        port::share(fd.as_fd(), true).map_err(failed("SO_REUSEPORT"))?;
        // Not before: a port that another program has would have been shared with it.
        port::share(self.as_fd(), true).map_err(failed("SO_REUSEPORT"))?;
        let second = Self::bound(fd, family, self.port, options);
        if second.is_err() {
            let _ = port::share(self.as_fd(), false);
        }
        second
    }

    fn bound(fd: OwnedFd, family: Family, port: u16, options: Options) -> Result<Self, BindError> {
        let gso = options.gso && option::value(fd.as_fd(), IntOption::Segment).is_ok();
        let gro = options.gro
            && merges_received_right(rustix::system::uname().release().to_bytes())
            && option::set(fd.as_fd(), IntOption::Gro, 1).is_ok();
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
        Ok(Self {
            sends_many: message::can_send_many(fd.as_fd()),
            fd,
            port: address.port(),
            gro,
            gso,
            gso_pause: AtomicU32::new(0),
            gso_refusals: AtomicU64::new(0),
            refused_in_a_row: AtomicU32::new(0),
            receives_singly: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            beside: None,
        })
    }

    /// The port bound.
    pub fn local_port(&self) -> u16 {
        self.port
    }

    /// Changes `SO_MARK` for what is sent from now on; 0 clears it.
    ///
    /// # Errors
    ///
    /// `EPERM` without `CAP_NET_ADMIN`.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        set_mark(self.fd.as_fd(), mark)
    }

    /// Whether the next send goes out as batches.
    pub fn gso(&self) -> bool {
        self.gso && self.gso_pause.load(Ordering::Relaxed) == 0
    }

    /// Whether receives may bring batches.
    pub fn gro(&self) -> bool {
        self.gro
    }

    /// Batches the kernel refused and that went out singly.
    pub fn gso_refusals(&self) -> u64 {
        self.gso_refusals.load(Ordering::Relaxed)
    }

    /// Ends every waiting and later [`Socket::receive`] with
    /// [`Receive::Stopped`](super::Receive::Stopped).
    pub fn shutdown(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Reports `ENOTCONN`, because the socket has no peer, and yet wakes
        // every reader.
        let _ = shutdown(&self.fd, Shutdown::Read);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A socket that is not bound yet.
fn open(family: Family, options: Options) -> Result<OwnedFd, BindError> {
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
    // Outer packets may be fragmented, as the kernel's WireGuard lets them be:
    // to refuse would lose packets on paths with a small MTU.
    match family {
        Family::V4 => {
            option::set(fd.as_fd(), IntOption::PacketInfoV4, 1)?;
            sockopt::set_ip_recvtos(fd, true)?;
            sockopt::set_ip_mtu_discover(fd, sockopt::Ipv4PathMtuDiscovery::DONT)?;
        }
        Family::V6 => {
            sockopt::set_ipv6_v6only(fd, true)?;
            option::set(fd.as_fd(), IntOption::PacketInfoV6, 1)?;
            sockopt::set_ipv6_recvtclass(fd, true)?;
            sockopt::set_ipv6_mtu_discover(fd, sockopt::Ipv6PathMtuDiscovery::DONT)?;
        }
    }
    Ok(())
}

/// Asks for large buffers; only `CAP_NET_ADMIN` gets more than the system's
/// limit, and less than asked for is no error.
fn grow_buffers(fd: &OwnedFd, size: usize) {
    if sockopt::set_socket_recv_buffer_size_force(fd, size).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(fd, size);
    }
    if sockopt::set_socket_send_buffer_size_force(fd, size).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(fd, size);
    }
}

fn set_mark(fd: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    option::set(fd, IntOption::Mark, mark as c_int)
}

/// Whether a kernel of this release merges received datagrams only when it
/// should: since Linux 5.12.
fn merges_received_right(release: &[u8]) -> bool {
    let release = String::from_utf8_lossy(release);
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
    matches!((number(), number()), (Some(major), Some(minor)) if (major, minor) >= (5, 12))
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> BindError {
    move |error| BindError::Io {
        what,
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
            assert!(merges_received_right(release.as_bytes()), "{release}");
        }
        for release in ["5.11.22", "4.19.0", "5", "", "x.y", "5.x"] {
            assert!(!merges_received_right(release.as_bytes()), "{release}");
        }
    }
}

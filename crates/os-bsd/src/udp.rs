//! UDP sockets for the encrypted (outer) datagrams.
//!
//! Each call transfers one datagram. FreeBSD's recvmmsg(2) and sendmmsg(2) are loops over recvmsg and
//! sendmsg in its C library (`lib/libc/gen/recvmmsg.c`), and macOS has no such call in its public
//! headers.

mod call;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    time::Duration,
};

use nix::errno::Errno;
use nix::sys::socket::{
    SockaddrIn, SockaddrIn6, SockaddrStorage, bind, getsockname, setsockopt, sockopt,
};
use taupe_packet::ip::Family;

use crate::{
    System,
    control_message::{self, LocalEnd},
    descriptor::new_socket,
    endpoint,
    outer_path::{self, OuterPath},
    socket_address::address_family,
    socket_option::{
        self, RECEIVE_BUFFER, SEND_BUFFER, USER_COOKIE, receive_destination_v4,
        receive_packet_info_v6,
    },
    wait::{self, End},
};

/// The longest wait for room in the send buffer.
const SEND_WAIT: Duration = Duration::from_millis(20);

/// Settings of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The part of the network that the socket's datagrams use.
    pub path: OuterPath,
    /// Bytes of each socket buffer. If the system does not permit so many, the buffers get as many as
    /// it permits.
    pub buffers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            path: OuterPath::Any,
            buffers: 2 << 20,
        }
    }
}

/// Error of binding a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// This machine does not support the family; the caller can continue without it.
    #[error("this system has no {0} sockets")]
    FamilyUnsupported(Family),
    /// Another socket has the port.
    #[error("UDP port {0} is in use")]
    PortInUse(u16),
    /// Anything else.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its length in bytes.
    pub len: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The address and the interface at which it arrived.
    pub local: Option<LocalEnd>,
}

/// A UDP socket that is bound to every local address of one family, which threads can share.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    family: Family,
    port: u16,
    end: End,
}

impl Socket {
    /// Binds `port`, or a free port if it is 0.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind(family: Family, port: u16, options: Options) -> Result<Self, BindError> {
        let domain = address_family(System::HERE, family).into();
        let fd =
            new_socket(domain, libc::SOCK_DGRAM, libc::IPPROTO_UDP).map_err(|error| match error
                .raw_os_error()
            {
                Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => {
                    BindError::FamilyUnsupported(family)
                }
                _ => failed("socket")(error),
            })?;
        set_up(&fd, family, options)?;
        let any = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let address = SockaddrStorage::from(SocketAddr::new(any, port));
        bind(fd.as_raw_fd(), &address).map_err(|error| match error {
            Errno::EADDRINUSE => BindError::PortInUse(port),
            error => failed("bind")(error),
        })?;
        let bound: SockaddrStorage = getsockname(fd.as_raw_fd()).map_err(failed("getsockname"))?;
        let v4 = bound.as_sockaddr_in().map(SockaddrIn::port);
        let bound = v4.or_else(|| bound.as_sockaddr_in6().map(SockaddrIn6::port));
        Ok(Self {
            fd,
            family,
            port: bound.unwrap_or(port),
            end: End::new().map_err(failed("pipe"))?,
        })
    }

    /// Returns the local port.
    #[must_use]
    pub const fn local_port(&self) -> u16 {
        self.port
    }

    /// Waits for a datagram. After [`Socket::shutdown`] returns an error at once. Datagrams that are
    /// longer than the buffer are skipped.
    ///
    /// # Errors
    ///
    /// The kernel's, which may be about an earlier datagram; [`io::ErrorKind::NotConnected`] after
    /// the end.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            if self.end.has_come() {
                return Err(io::ErrorKind::NotConnected.into());
            }
            match call::receive(self.fd.as_fd(), buffer) {
                Ok(datagram) if datagram.is_cut => {}
                Ok(datagram) => {
                    return Ok(Received {
                        len: datagram.len,
                        from: datagram.from.ok_or(io::ErrorKind::InvalidData)?,
                        local: datagram.local,
                    });
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => self.end.or_readable(self.fd.as_fd())?,
                    Some(libc::EINTR) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Sends a datagram from a local address, and by an interface if the address is link-local. If the
    /// system cannot use them, it chooses others.
    ///
    /// # Errors
    ///
    /// The kernel's. `ENOBUFS` and `EAGAIN` say that there was no room in the queue of the interface
    /// or the socket, and the datagram is lost.
    pub fn send(&self, to: SocketAddr, from: Option<LocalEnd>, datagram: &[u8]) -> io::Result<()> {
        let to_bytes = endpoint::encode(System::HERE, to);
        let send = |control: &[u8]| loop {
            let sent = call::send(self.fd.as_fd(), &to_bytes, control, datagram);
            match sent.as_ref().err().and_then(io::Error::raw_os_error) {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => {
                    if self.end.has_come() || !self.end.or_writable(self.fd.as_fd(), SEND_WAIT)? {
                        return sent;
                    }
                }
                _ => return sent,
            }
        };
        // With a source, macOS looks up the route of each datagram anew and takes a lock of all UDP
        // sockets (`in_pcbdisconnect` at the end of `udp_output` in xnu's `bsd/netinet/udp_usrreq.c`).
        let Some(from) = from.filter(|from| from.address.is_ipv4() == to.is_ipv4()) else {
            return send(&[]);
        };
        let sent = send(control_message::encode(System::HERE, from).as_bytes());
        match sent.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(error) if control_message::may_be_due_to_source(error) => send(&[]),
            _ => sent,
        }
    }

    /// Sets the firewall mark. On FreeBSD this is the number that its firewalls match
    /// (`SO_USER_COOKIE`), as in other WireGuard programs.
    ///
    /// # Errors
    ///
    /// The kernel's; [`io::ErrorKind::Unsupported`] on macOS, which has no marks.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        match System::HERE {
            System::FreeBsd => socket_option::set(self.fd.as_fd(), USER_COOKIE, mark),
            System::MacOs => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "macOS has no marks of packets; omit fwmark, or set it to off",
            )),
        }
    }

    /// Restricts the socket to a path from now on. On FreeBSD, [`OuterPath::Any`] keeps the routing table
    /// that the socket has.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`] if the system has no such paths; [`io::ErrorKind::NotFound`] if
    /// there is no routing table of that number or no interface of that index.
    pub fn set_path(&self, path: OuterPath) -> io::Result<()> {
        set_path(&self.fd, self.family, path)
    }

    /// Ends waiting and later receives.
    pub fn shutdown(&self) {
        self.end.come();
    }
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> BindError {
    move |error| {
        let source = error.into();
        BindError::Io { what, source }
    }
}

fn set_path(fd: &OwnedFd, family: Family, path: OuterPath) -> io::Result<()> {
    let unsupported = |error| io::Error::new(io::ErrorKind::Unsupported, error);
    match outer_path::option(System::HERE, family, path).map_err(unsupported)? {
        None => Ok(()),
        Some((option, value)) => socket_option::set(fd.as_fd(), option, value)
            .map_err(|error| outer_path::refusal(path, error)),
    }
}

fn set_up(fd: &OwnedFd, family: Family, options: Options) -> Result<(), BindError> {
    wait::set_up(fd.as_fd()).map_err(failed("preparing a UDP socket"))?;
    let receive_destination = match family {
        Family::V4 => receive_destination_v4(System::HERE),
        Family::V6 => {
            setsockopt(fd, sockopt::Ipv6V6Only, &true).map_err(failed("IPV6_V6ONLY"))?;
            receive_packet_info_v6(System::HERE)
        }
    };
    socket_option::set(fd.as_fd(), receive_destination, 1)
        .map_err(failed("asking for the destinations of datagrams"))?;
    set_path(fd, family, options.path).map_err(failed("restricting a UDP socket to its path"))?;
    socket_option::set_largest(fd.as_fd(), RECEIVE_BUFFER, options.buffers);
    socket_option::set_largest(fd.as_fd(), SEND_BUFFER, options.buffers);
    Ok(())
}

//! UDP sockets for the encrypted (outer) datagrams.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol,
        SockType, SockaddrStorage, bind, getsockname, recvmsg, sendmsg, setsockopt, socket,
        sockopt,
    },
};
use taupe_packet::ip::Family;

use crate::{
    System,
    socket_option::{self, SET_FIB, USER_COOKIE},
    wait::{self, End},
};

/// Settings of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// FreeBSD's routing table for the socket's datagrams; `None` is the process's.
    pub fib: Option<u32>,
    /// Bytes of each socket buffer, if the system permits so many.
    pub buffers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fib: None,
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
    /// Its length in bytes; the rest of a longer one is lost.
    pub len: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The address at which it arrived, and for IPv6 the interface (0: not known).
    pub local: Option<(IpAddr, u32)>,
}

/// A UDP socket that is bound to every local address of one family, which threads can share.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
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
        let domain = match family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        };
        let fd = match socket(
            domain,
            SockType::Datagram,
            SockFlag::empty(),
            SockProtocol::Udp,
        ) {
            Err(Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT) => {
                return Err(BindError::FamilyUnsupported(family));
            }
            fd => fd.map_err(failed("socket"))?,
        };
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
        Ok(Self {
            fd,
            port: address_of(&bound).map_or(port, |bound| bound.port()),
            end: End::new().map_err(failed("pipe"))?,
        })
    }

    /// Returns the local port.
    #[must_use]
    pub const fn local_port(&self) -> u16 {
        self.port
    }

    /// Waits for a datagram. After [`Socket::shutdown`] returns an error at once.
    ///
    /// # Errors
    ///
    /// The kernel's, which may be about an earlier datagram; [`io::ErrorKind::NotConnected`] after
    /// the end.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut control = nix::cmsg_space!(libc::in6_pktinfo, libc::in_addr);
        loop {
            if self.end.has_come() {
                return Err(io::ErrorKind::NotConnected.into());
            }
            let mut parts = [IoSliceMut::new(buffer)];
            let fd = self.fd.as_raw_fd();
            let flags = MsgFlags::empty();
            match recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), flags) {
                Ok(message) => {
                    let from = message.address.as_ref().and_then(address_of);
                    let local = message.cmsgs().ok().and_then(|mut all| all.find_map(local));
                    let len = message.bytes;
                    let from = from.ok_or(io::ErrorKind::InvalidData)?;
                    return Ok(Received { len, from, local });
                }
                Err(Errno::EAGAIN) => self.end.or_readable(self.fd.as_fd())?,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a datagram from a local address and, for IPv6, by an interface (0: any). If the address
    /// is no longer one of this machine, the system chooses another one.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn send(
        &self,
        to: SocketAddr,
        from: Option<(IpAddr, u32)>,
        datagram: &[u8],
    ) -> io::Result<()> {
        let sent = match (to, from) {
            (SocketAddr::V4(_), Some((IpAddr::V4(source), _))) => {
                self.send_from_v4(to, source, datagram)
            }
            (SocketAddr::V6(_), Some((IpAddr::V6(source), interface))) => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr {
                        s6_addr: source.octets(),
                    },
                    ipi6_ifindex: interface,
                };
                self.send_with(to, &[ControlMessage::Ipv6PacketInfo(&info)], datagram)
            }
            _ => self.send_with(to, &[], datagram),
        };
        match sent {
            Err(Errno::EADDRNOTAVAIL | Errno::EINVAL) if from.is_some() => {
                Ok(self.send_with(to, &[], datagram)?)
            }
            sent => Ok(sent?),
        }
    }

    #[cfg(target_os = "freebsd")]
    fn send_from_v4(&self, to: SocketAddr, source: Ipv4Addr, datagram: &[u8]) -> nix::Result<()> {
        let source = libc::in_addr {
            s_addr: u32::from_ne_bytes(source.octets()),
        };
        self.send_with(to, &[ControlMessage::Ipv4SendSrcAddr(&source)], datagram)
    }

    #[cfg(target_os = "macos")]
    fn send_from_v4(&self, to: SocketAddr, source: Ipv4Addr, datagram: &[u8]) -> nix::Result<()> {
        let info = libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr {
                s_addr: u32::from_ne_bytes(source.octets()),
            },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        self.send_with(to, &[ControlMessage::Ipv4PacketInfo(&info)], datagram)
    }

    fn send_with(
        &self,
        to: SocketAddr,
        control: &[ControlMessage<'_>],
        datagram: &[u8],
    ) -> nix::Result<()> {
        let parts = [IoSlice::new(datagram)];
        let to = SockaddrStorage::from(to);
        sendmsg(
            self.fd.as_raw_fd(),
            &parts,
            control,
            MsgFlags::empty(),
            Some(&to),
        )
        .map(drop)
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

fn set_up(fd: &OwnedFd, family: Family, options: Options) -> Result<(), BindError> {
    wait::set_up(fd.as_fd()).map_err(failed("preparing a UDP socket"))?;
    let set = match family {
        Family::V4 => setsockopt(fd, sockopt::Ipv4RecvDstAddr, &true),
        Family::V6 => setsockopt(fd, sockopt::Ipv6V6Only, &true)
            .and_then(|()| setsockopt(fd, sockopt::Ipv6RecvPacketInfo, &true)),
    };
    set.map_err(failed("setting up a UDP socket"))?;
    if let Some(fib) = options.fib {
        socket_option::set(fd.as_fd(), SET_FIB, fib).map_err(failed("SO_SETFIB"))?;
    }
    // Larger ones than the system permits (kern.ipc.maxsockbuf) are refused. The default then stays.
    let _ = setsockopt(fd, sockopt::RcvBuf, &options.buffers);
    let _ = setsockopt(fd, sockopt::SndBuf, &options.buffers);
    Ok(())
}

/// Returns the local address in a control message.
fn local(message: ControlMessageOwned) -> Option<(IpAddr, u32)> {
    match message {
        ControlMessageOwned::Ipv4RecvDstAddr(address) => {
            let octets = address.s_addr.to_ne_bytes();
            Some((Ipv4Addr::from(octets).into(), 0))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
            Some((address.into(), info.ipi6_ifindex))
        }
        _ => None,
    }
}

fn address_of(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = || address.as_sockaddr_in().copied().map(SocketAddrV4::from);
    let v6 = || address.as_sockaddr_in6().copied().map(SocketAddrV6::from);
    v4().map(SocketAddr::V4)
        .or_else(|| v6().map(SocketAddr::V6))
}

//! The part of rtnetlink (RFC 3549, `rtnetlink(7)`) that finds an interface, its state and its MTU.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::{NETFILTER, SocketAddrNetlink},
        recv, send, socket_with,
    },
};

use crate::{ioctl, tun::Tun};

/// A multicast group of rtnetlink, by its number.
#[derive(Clone, Copy)]
pub(super) enum Group {
    Link = 1,
    TrafficControl = 4,
    Ipv4Address = 5,
    Ipv4Route = 7,
    Ipv4Rule = 8,
    Ipv6Address = 9,
    Ipv6Route = 11,
    Ipv6Rule = 19,
    NamespaceId = 28,
}

/// Opens a non-blocking socket that receives the notifications of `groups`.
pub(super) fn notices(groups: &[Group]) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let groups = groups
        .iter()
        .fold(0, |all, &group| all | 1 << (group as u32 - 1));
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Opens a socket for notifications of changed tables, chains and rules of nf_tables
/// (`NFNLGRP_NFTABLES`).
pub(super) fn firewall_notices() -> io::Result<OwnedFd> {
    const NFNLGRP_NFTABLES: u32 = 7;
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(NETFILTER),
    )?;
    let group = 1 << (NFNLGRP_NFTABLES - 1);
    bind(&socket, &SocketAddrNetlink::new(0, group))?;
    Ok(socket)
}

/// Discards all notifications and returns true if there were any.
pub(super) fn drain(notices: &OwnedFd) -> io::Result<bool> {
    let mut any = false;
    loop {
        // A notification only triggers a new query of the state, so it may be truncated, and lost
        // when there are too many (`ENOBUFS`).
        match recv(notices, &mut [0; 64], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::NOBUFS) => any = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(any),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns `N` bytes at `at`, which must be within `bytes`.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    // Protocol 0 is `NETLINK_ROUTE`.
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        None,
    )?)
}

/// State of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) up: bool,
    pub(super) mtu: u32,
    /// True if the TUN puts 4 bytes of packet information before each packet.
    pub(super) packet_info: bool,
}

/// A socket for requests to the network namespace that it was opened in, and through it to others.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    /// The namespace of the socket; `None` if the kernel does not report it.
    home: Option<Namespace>,
}

type Namespace = (u64, u64);

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Self> {
        Self::from_socket(socket(SocketFlags::CLOEXEC)?)
    }

    /// Takes a socket that was opened in any network namespace.
    pub(super) fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        let home = ioctl::socket_namespace(socket.as_fd());
        let home = home
            .ok()
            .map(|namespace| identity(&namespace))
            .transpose()?;
        Ok(Self { socket, home })
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Returns the state of a TUN's interface in whatever namespace it is, or `None` if it was
    /// deleted.
    pub(super) fn link_of(&self, tun: &Tun) -> io::Result<Option<Link>> {
        self.find_interface(tun, |name, namespace| self.link(name, namespace))
    }

    /// Deletes a TUN's interface in whatever namespace it is. If the kernel does not report the
    /// namespace, deletes nothing, because another interface in this namespace may have the same
    /// name.
    pub(super) fn delete(&self, tun: &Tun) -> io::Result<()> {
        if let Err(error) = tun.namespace()
            && !is(&error, Errno::BADFD)
        {
            return Err(error);
        }
        self.find_interface(tun, |name, namespace| {
            let request = link_request(name, namespace);
            self.ask(RTM_DELLINK, &request).map(drop)
        })
        .map(|_| ())
    }

    /// Calls `act` with the name of a TUN's interface and the id of its namespace. Returns `None`
    /// if the interface was deleted.
    fn find_interface<T>(
        &self,
        tun: &Tun,
        act: impl Fn(&str, Option<i32>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        /// The interface may be renamed or moved between two requests.
        const ATTEMPTS: usize = 8;
        for _ in 0..ATTEMPTS {
            let name = match tun.name() {
                Err(error) if is(&error, Errno::BADFD) => return Ok(None),
                name => name?,
            };
            let namespace = match tun.namespace() {
                Ok(namespace) => Some(namespace),
                Err(error) if is(&error, Errno::BADFD) => return Ok(None),
                // The namespace is being dismantled, and the interface with it.
                Err(error) if is(&error, Errno::INVAL) => return Ok(None),
                // Without the capability, or with a kernel that cannot report the namespace, assume
                // that the interface was not moved.
                Err(_) => None,
            };
            let abroad = match (namespace, self.home) {
                (Some(namespace), Some(home)) if identity(&namespace)? != home => {
                    Some(self.namespace_id(&namespace)?)
                }
                _ => None,
            };
            match act(&name, abroad) {
                Err(error) if is(&error, Errno::NODEV) => {}
                done => return done.map(Some),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the TUN's interface cannot be found where the kernel says it is",
        ))
    }

    /// Returns the id that the socket's namespace has for another namespace, and assigns one if
    /// there is none.
    fn namespace_id(&self, namespace: &OwnedFd) -> io::Result<i32> {
        use std::os::fd::AsRawFd;

        let mut request = vec![0; 4];
        push(
            &mut request,
            NETNSA_FD,
            &namespace.as_raw_fd().to_ne_bytes(),
        );
        let mut with_any_id = request.clone();
        push(&mut with_any_id, NETNSA_NSID, &(-1i32).to_ne_bytes());
        match self.ask(RTM_NEWNSID, &with_any_id) {
            Err(error) if !is(&error, Errno::EXIST) => return Err(error),
            _ => {}
        }
        let answer = self.ask(RTM_GETNSID, &request)?;
        let attributes = answer.get(4..).unwrap_or_default();
        let id = find(attributes, NETNSA_NSID).and_then(|id| id.first_chunk());
        match id.map(|id| i32::from_ne_bytes(*id)) {
            Some(id @ 0..) => Ok(id),
            _ => Err(unreadable()),
        }
    }

    fn link(&self, name: &str, namespace: Option<i32>) -> io::Result<Link> {
        let answer = self.ask(RTM_GETLINK, &link_request(name, namespace))?;
        let (header, attributes) = answer
            .split_first_chunk::<LINK_HEADER>()
            .ok_or_else(unreadable)?;
        let word = |at| u32::from_ne_bytes(array(header, at));
        Ok(Link {
            index: word(4),
            up: word(8) & libc::IFF_UP as u32 != 0,
            mtu: find(attributes, IFLA_MTU)
                .and_then(|mtu| mtu.first_chunk())
                .map(|mtu| u32::from_ne_bytes(*mtu))
                .ok_or_else(unreadable)?,
            packet_info: find(attributes, IFLA_LINKINFO)
                .and_then(|info| find(info, IFLA_INFO_DATA))
                .and_then(|data| find(data, IFLA_TUN_PI))
                .is_some_and(|value| value == [1]),
        })
    }

    /// Returns the interface through which the routing table of the socket's namespace sends
    /// packets from `source` with the firewall mark `mark` to `destination`.
    pub(super) fn route_interface(
        &self,
        destination: IpAddr,
        source: IpAddr,
        mark: u32,
    ) -> io::Result<u32> {
        let octets = |address| match address {
            IpAddr::V4(a) => Ipv4Addr::octets(&a).to_vec(),
            IpAddr::V6(a) => Ipv6Addr::octets(&a).to_vec(),
        };
        let (destination, source) = (octets(destination), octets(source));
        let family = if destination.len() == 4 {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let mut request = vec![0; ROUTE_HEADER];
        request[0] = family as u8;
        request[1] = destination.len() as u8 * 8;
        request[2] = source.len() as u8 * 8;
        push(&mut request, RTA_DST, &destination);
        push(&mut request, RTA_SRC, &source);
        if mark != 0 {
            push(&mut request, RTA_MARK, &mark.to_ne_bytes());
        }
        let answer = self.ask(RTM_GETROUTE, &request)?;
        let attributes = answer.get(ROUTE_HEADER..).unwrap_or_default();
        find(attributes, RTA_OIF)
            .and_then(|interface| interface.first_chunk())
            .map(|interface| u32::from_ne_bytes(*interface))
            .ok_or_else(unreadable)
    }

    /// Sends a request and returns the body of the answer, which is empty if there is only an
    /// acknowledgement.
    fn ask(&self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        const NLM_F_REQUEST: u16 = 1;
        const NLM_F_ACK: u16 = 4;
        const NLMSG_ERROR: u16 = 2;

        let mut request = Vec::with_capacity(MESSAGE_HEADER + body.len());
        request.extend(((MESSAGE_HEADER + body.len()) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        request.extend([0; 8]);
        request.extend(body);
        send(&self.socket, &request, SendFlags::empty())?;

        let mut answer = Vec::new();
        let mut buffer = vec![0; 32 << 10];
        loop {
            let length = match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, length)) => length.min(buffer.len()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut messages = &buffer[..length];
            while let Some((kind, body, rest)) = message(messages) {
                messages = rest;
                if kind == NLMSG_ERROR {
                    let code = body.first_chunk().ok_or_else(unreadable)?;
                    return match i32::from_ne_bytes(*code) {
                        0 => Ok(answer),
                        code => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
                    };
                }
                answer = body.to_vec();
            }
        }
    }
}

const MESSAGE_HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const ROUTE_HEADER: usize = 12;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_MARK: u16 = 16;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_DATA: u16 = 2;
/// Since Linux 4.17.
const IFLA_TUN_PI: u16 = 4;
/// Since Linux 5.0; since 4.15 as `IFLA_IF_NETNSID`.
const IFLA_TARGET_NETNSID: u16 = 46;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

/// Returns the body of a request about an interface.
fn link_request(name: &str, namespace: Option<i32>) -> Vec<u8> {
    let mut request = vec![0; LINK_HEADER];
    push(&mut request, IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
    if let Some(id) = namespace {
        push(&mut request, IFLA_TARGET_NETNSID, &id.to_ne_bytes());
    }
    request
}

/// Splits off the first message: its type, its body and the remaining bytes.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let header = bytes.first_chunk::<MESSAGE_HEADER>()?;
    let length = u32::from_ne_bytes(array(header, 0)) as usize;
    let kind = u16::from_ne_bytes(array(header, 4));
    let body = bytes.get(MESSAGE_HEADER..length)?;
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((kind, body, &bytes[next..]))
}

/// Appends an attribute to a message that is a multiple of 4 bytes long.
fn push(message: &mut Vec<u8>, kind: u16, data: &[u8]) {
    message.extend(((4 + data.len()) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(data);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Returns the data of the attribute `kind`.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    /// Flag bits in the attribute type (`NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`).
    const FLAGS: u16 = 0xc000;
    loop {
        let header = attributes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let data = attributes.get(4..length)?;
        if u16::from_ne_bytes([header[2], header[3]]) & !FLAGS == kind {
            return Some(data);
        }
        attributes = &attributes[length.next_multiple_of(4).min(attributes.len())..];
    }
}

fn identity(namespace: &OwnedFd) -> io::Result<Namespace> {
    let stat = rustix::fs::fstat(namespace)?;
    Ok((stat.st_dev as u64, stat.st_ino as u64))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

fn unreadable() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "an rtnetlink answer lacks what was asked for",
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_are_found_behind_others() {
        let mut bytes = Vec::new();
        push(&mut bytes, 1, b"odd");
        push(&mut bytes, 2, &[]);
        push(&mut bytes, 3, &[1, 2, 3, 4, 5]);
        push(&mut bytes, 5 | 0x8000, &[6]);
        assert_eq!(find(&bytes, 3), Some([1, 2, 3, 4, 5].as_slice()));
        assert_eq!(find(&bytes, 2), Some([].as_slice()));
        assert_eq!(find(&bytes, 5), Some([6].as_slice()));
        assert_eq!(find(&bytes, 4), None);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            find(&bytes, 4);
            let mut rest = bytes.as_slice();
            while let Some((_, body, next)) = message(rest) {
                prop_assert!(body.len() + next.len() < rest.len());
                rest = next;
            }
        }
    }
}

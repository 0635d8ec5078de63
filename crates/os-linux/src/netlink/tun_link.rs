//! The interface of a TUN's descriptor, in whatever network namespace it is.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use netlink_bindings::{
    rt_link::{Ifinfomsg, LinkinfoDataMsg, OpGetlinkDo, Request},
    utils::{find_attr, parse_i32, push_header},
};
use rustix::io::Errno;

use super::{
    link,
    socket::{NetlinkSocket, RawRequest, RequestError, unreadable},
};
use crate::ioctl;

/// State of a TUN's interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunLink {
    pub(crate) index: u32,
    pub(crate) up: bool,
    pub(crate) mtu: u32,
    /// True if the TUN puts 4 bytes of packet information before each packet.
    pub(crate) has_packet_info: bool,
}

/// Client that finds the interface of a TUN, also after the interface moved to another network
/// namespace.
#[derive(Debug)]
pub(crate) struct TunLookup {
    socket: NetlinkSocket,
    /// The namespace of the socket; `None` if the kernel does not report it.
    namespace: Option<NamespaceIdentity>,
}

/// Device and inode number of a namespace's file.
type NamespaceIdentity = (u64, u64);

impl TunLookup {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Self::from_socket(NetlinkSocket::open(None)?)
    }

    /// Takes over the socket of another client, which was opened in any network namespace.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        Self::from_socket(fd.into())
    }

    fn from_socket(socket: NetlinkSocket) -> io::Result<Self> {
        let namespace = ioctl::socket_namespace(socket.as_fd()).ok();
        let namespace = namespace.as_ref().map(identity).transpose()?;
        Ok(Self { socket, namespace })
    }

    /// Returns the state of a TUN's interface, or `None` if the interface was deleted.
    pub(crate) fn find(&mut self, tun: BorrowedFd<'_>) -> io::Result<Option<TunLink>> {
        self.with_interface(tun, |socket, name, namespace| {
            let mut found = None;
            let request = link::request_by_name(name, namespace);
            socket.request(&request, |body| found = parse(body))?;
            found.ok_or_else(unreadable)
        })
    }

    /// Deletes a TUN's interface. If the kernel does not report the interface's namespace, deletes
    /// nothing, because another interface in the socket's namespace may have the same name.
    pub(crate) fn delete(&mut self, tun: BorrowedFd<'_>) -> io::Result<()> {
        if let Err(error) = ioctl::tun_namespace(tun)
            && !is(&error, Errno::BADFD)
        {
            return Err(error);
        }
        let deleted = self.with_interface(tun, |socket, name, namespace| {
            let mut request = Request::new().op_dellink_do(&Ifinfomsg::new());
            let attributes = request.encode().push_ifname_bytes(name.as_bytes());
            match namespace {
                Some(id) => drop(attributes.push_target_netnsid(id)),
                None => drop(attributes),
            }
            socket.request(&request, |_| {})
        });
        deleted.map(|_| ())
    }

    /// Calls `act` with the name of a TUN's interface and the id of its namespace, if that is not
    /// the socket's. Returns `None` if the interface was deleted.
    fn with_interface<T>(
        &mut self,
        tun: BorrowedFd<'_>,
        act: impl Fn(&mut NetlinkSocket, &str, Option<i32>) -> Result<T, RequestError>,
    ) -> io::Result<Option<T>> {
        /// The interface may be renamed or moved between two requests.
        const ATTEMPTS: usize = 8;
        for _ in 0..ATTEMPTS {
            let name = match ioctl::tun_name(tun) {
                Err(error) if is(&error, Errno::BADFD) => return Ok(None),
                name => name?,
            };
            let namespace = match ioctl::tun_namespace(tun) {
                Ok(namespace) => Some(namespace),
                Err(error) if is(&error, Errno::BADFD) => return Ok(None),
                // The namespace is being dismantled, and the interface with it.
                Err(error) if is(&error, Errno::INVAL) => return Ok(None),
                // Without the capability, or with a kernel that cannot report the namespace, assume
                // that the interface was not moved.
                Err(_) => None,
            };
            let id = match (namespace, self.namespace) {
                (Some(namespace), Some(own)) if identity(&namespace)? != own => {
                    Some(namespace_id(&mut self.socket, &namespace)?)
                }
                _ => None,
            };
            match act(&mut self.socket, &name, id) {
                Err(error) if error.is(Errno::NODEV) => {}
                done => return Ok(Some(done?)),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the TUN's interface cannot be found where the kernel says it is",
        ))
    }
}

impl From<TunLookup> for OwnedFd {
    fn from(lookup: TunLookup) -> Self {
        lookup.socket.into()
    }
}

/// Parses the state of a link.
pub(super) fn parse(body: &[u8]) -> Option<TunLink> {
    let (header, attributes) = OpGetlinkDo::decode_request(body);
    let info = attributes.get_linkinfo().and_then(|info| info.get_data());
    let packet_info = match info {
        Ok(LinkinfoDataMsg::Tun(tun)) => tun.get_pi().unwrap_or_default(),
        _ => 0,
    };
    Some(TunLink {
        index: header.ifi_index.cast_unsigned(),
        up: header.ifi_flags & libc::IFF_UP as u32 != 0,
        mtu: attributes.get_mtu().ok()?,
        // Since Linux 4.17.
        has_packet_info: packet_info == 1,
    })
}

const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

/// `struct rtgenmsg`, padded.
const NAMESPACE_HEADER: usize = 4;

/// Returns the id that the socket's network namespace has for another one, and assigns one if there
/// is none.
fn namespace_id(socket: &mut NetlinkSocket, namespace: &OwnedFd) -> Result<i32, RequestError> {
    let mut body = vec![0; NAMESPACE_HEADER];
    push_int(&mut body, NETNSA_FD, namespace.as_raw_fd());
    let mut with_any_id = body.clone();
    push_int(&mut with_any_id, NETNSA_NSID, -1);
    let request = |message_type, body| RawRequest {
        message_type,
        flags: 0,
        body,
    };
    match socket.request(&request(RTM_NEWNSID, &with_any_id), |_| {}) {
        Err(error) if !error.is(Errno::EXIST) => return Err(error),
        _ => {}
    }
    let mut id = None;
    socket.request(&request(RTM_GETNSID, &body), |body| {
        id = parse_namespace_id(body)
    })?;
    id.ok_or_else(unreadable)
}

/// Parses the id of a network namespace, which is negative if there is none.
pub(super) fn parse_namespace_id(body: &[u8]) -> Option<i32> {
    let attributes = body.get(NAMESPACE_HEADER..)?;
    let id = find_attr(attributes, NETNSA_NSID).and_then(parse_i32)?;
    (id >= 0).then_some(id)
}

/// Appends an attribute.
fn push_int(body: &mut Vec<u8>, attribute: u16, value: i32) {
    push_header(body, attribute, size_of_val(&value) as u16);
    body.extend(value.to_ne_bytes());
}

fn identity(namespace: &OwnedFd) -> io::Result<NamespaceIdentity> {
    let stat = rustix::fs::fstat(namespace)?;
    Ok((stat.st_dev as u64, stat.st_ino as u64))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

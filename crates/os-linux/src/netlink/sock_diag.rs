//! Listing and ending the sockets of other processes (`linux/sock_diag.h`, `linux/inet_diag.h`).

use netlink_bindings::{
    consts::NLM_F_DUMP,
    utils::{find_attr, parse_u32},
};
use rustix::net::netlink::SOCK_DIAG;
use taupe_packet::ip::Family;

use super::{
    client::address_family,
    error::Result,
    socket::{NetlinkSocket, RawRequest},
};

/// A TCP, UDP or UDP-Lite socket that is not a listener, with the keys by which `ss -K` finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId {
    /// `IPPROTO_*`.
    pub protocol: u8,
    /// The family of the socket (`AF_INET` or `AF_INET6`), independent of its addresses.
    pub family: Family,
    /// The local and the remote address, in network order; an IPv4 address is in the first four
    /// bytes.
    pub addresses: [[u8; 16]; 2],
    /// The local and the remote port.
    pub ports: [u16; 2],
    /// The interface to which the socket is bound, or 0.
    pub interface: u32,
    /// A number that no other socket has or had (`SO_COOKIE`).
    pub cookie: u64,
}

/// A socket as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// The keys of the socket.
    pub id: SocketId,
    /// The state (`include/net/tcp_states.h`).
    pub state: u8,
    /// The owner's user ID.
    pub uid: u32,
    /// The inode number in `/proc/PID/fd`; 0 for a socket that no process has open any more.
    pub inode: u32,
    /// The firewall mark; `None` without `CAP_NET_ADMIN`.
    pub mark: Option<u32>,
    /// Bytes of payload sent and received; only for TCP.
    pub transfer: Option<[u64; 2]>,
}

impl SocketInfo {
    /// An established TCP connection, or a connected UDP socket (`TCP_ESTABLISHED`).
    pub const ESTABLISHED: u8 = 1;
    /// An unconnected UDP socket (`TCP_CLOSE`).
    pub const CLOSE: u8 = 7;
    /// `TCP_LISTEN`.
    pub const LISTEN: u8 = 10;
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

/// Attributes of a listed socket: information of its protocol, and its mark, which the kernel
/// reports only to `CAP_NET_ADMIN`.
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_MARK: u16 = 15;

/// `struct inet_diag_msg`.
const MESSAGE: usize = 72;

/// Access to the sockets of the network namespace that the calling thread was in when this was
/// opened.
#[derive(Debug)]
pub struct SockDiag {
    socket: NetlinkSocket,
}

impl SockDiag {
    /// Opens a netlink socket for this.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> Result<Self> {
        let socket = NetlinkSocket::open(Some(SOCK_DIAG));
        let socket = socket.map_err(|error| error.context("open a netlink socket"))?;
        Ok(Self { socket })
    }

    /// Returns all sockets of a protocol (`IPPROTO_TCP`, `IPPROTO_UDP`) and family, including
    /// listeners.
    ///
    /// # Errors
    ///
    /// The kernel's: `ENOENT` if it cannot list the protocol (without `CONFIG_INET_UDP_DIAG`, for
    /// example).
    pub fn sockets(&mut self, protocol: u8, family: Family) -> Result<Vec<SocketInfo>> {
        let all = SocketId {
            protocol,
            family,
            addresses: [[0; 16]; 2],
            ports: [0; 2],
            interface: 0,
            cookie: u64::MAX,
        };
        let mut body = request(&all);
        body[2] = 1 << (INET_DIAG_INFO - 1);
        let request = RawRequest {
            message_type: SOCK_DIAG_BY_FAMILY,
            flags: NLM_F_DUMP as u16,
            body: &body,
        };
        let listed = self.socket.dump(&request, |body, all| {
            all.extend(parse(body, protocol));
        });
        listed.map_err(|error| error.context("list sockets"))
    }

    /// Ends a socket: its program gets `ECONNABORTED`, and the remote end of a TCP connection a
    /// reset. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    ///
    /// The kernel's: `ENOENT` if it has ended already, or if other sockets have the same addresses
    /// and ports; `EOPNOTSUPP` without `CONFIG_INET_DIAG_DESTROY`.
    pub fn destroy(&mut self, id: &SocketId) -> Result<()> {
        let body = request(id);
        let request = RawRequest {
            message_type: SOCK_DESTROY,
            flags: 0,
            body: &body,
        };
        let ended = self.socket.request(&request, |_| ());
        ended.map_err(|error| error.context("end a socket"))
    }
}

/// `struct inet_diag_req_v2`.
fn request(id: &SocketId) -> Vec<u8> {
    let mut body = vec![address_family(id.family), id.protocol, 0, 0];
    // All states.
    body.extend(u32::MAX.to_ne_bytes());
    for port in id.ports {
        body.extend(port.to_be_bytes());
    }
    for address in id.addresses {
        body.extend(address);
    }
    body.extend(id.interface.to_ne_bytes());
    // The lower half is first, also on big-endian machines.
    body.extend((id.cookie as u32).to_ne_bytes());
    body.extend(((id.cookie >> 32) as u32).to_ne_bytes());
    body
}

/// Parses a listed socket.
pub(super) fn parse(body: &[u8], protocol: u8) -> Option<SocketInfo> {
    let (header, attributes) = body.split_at_checked(MESSAGE)?;
    let [family, state, ..] = header else {
        return None;
    };
    let word = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_be_bytes(*header.get(at..)?.first_chunk()?));
    let address = |at: usize| header.get(at..)?.first_chunk().copied();
    let family = match i32::from(*family) {
        libc::AF_INET => Family::V4,
        libc::AF_INET6 => Family::V6,
        _ => return None,
    };
    let info = find_attr(attributes, INET_DIAG_INFO);
    Some(SocketInfo {
        id: SocketId {
            protocol,
            family,
            addresses: [address(8)?, address(24)?],
            ports: [half(4)?, half(6)?],
            interface: word(40)?,
            cookie: u64::from(word(44)?) | u64::from(word(48)?) << 32,
        },
        state: *state,
        uid: word(64)?,
        inode: word(68)?,
        mark: find_attr(attributes, INET_DIAG_MARK).and_then(parse_u32),
        transfer: info
            .filter(|_| i32::from(protocol) == libc::IPPROTO_TCP)
            .and_then(transfer),
    })
}

/// Returns the bytes of payload sent and received from `struct tcp_info` (Linux 4.19).
fn transfer(info: &[u8]) -> Option<[u64; 2]> {
    const RECEIVED: usize = 128;
    const SENT: usize = 200;
    const SENT_AGAIN: usize = 208;
    let word = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    Some([
        word(SENT)?.saturating_sub(word(SENT_AGAIN)?),
        word(RECEIVED)?,
    ])
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_of_this_process_is_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let (mut server, _) = listener.accept().expect("a client");
        client.write_all(&[7; 1000]).expect("sent");
        server.read_exact(&mut [0; 1000]).expect("received");
        let mut sock_diag = SockDiag::open().expect("a socket");
        let tcp = libc::IPPROTO_TCP as u8;
        let listed = sock_diag.sockets(tcp, Family::V4).expect("a list");
        let of = |ports: [Option<u16>; 2]| {
            listed.iter().find(|one| {
                let pairs = one.id.ports.iter().zip(ports);
                one.state == SocketInfo::ESTABLISHED
                    && pairs
                        .into_iter()
                        .all(|(is, want)| want.is_none_or(|want| *is == want))
            })
        };
        let sender = of([None, Some(port)]).expect("the client");
        assert_eq!(sender.transfer, Some([1000, 0]));
        assert_eq!(sender.id.addresses[0][..4], [127, 0, 0, 1]);
        let receiver = of([Some(port), None]).expect("the server");
        assert_eq!(receiver.transfer, Some([0, 1000]));
        assert_ne!(sender.inode, 0);
        assert_ne!(sender.id.cookie, receiver.id.cookie);
    }

    #[test]
    fn a_protocol_that_cannot_be_listed_is_an_error() {
        let mut sock_diag = SockDiag::open().expect("a socket");
        let listed = sock_diag.sockets(libc::IPPROTO_ENCAP as u8, Family::V4);
        let error = listed.expect_err("sockets of IPPROTO_ENCAP");
        assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
    }

    #[test]
    fn what_is_cut_off_is_no_socket() {
        let mut body = [0; MESSAGE];
        body[0] = libc::AF_INET as u8;
        let tcp = libc::IPPROTO_TCP as u8;
        let found = parse(&body, tcp).expect("a socket");
        assert_eq!((found.transfer, found.mark), (None, None));
        assert_eq!(parse(&body[..MESSAGE - 1], tcp), None);
        body[0] = libc::AF_UNIX as u8;
        assert_eq!(parse(&body, tcp), None);
        assert_eq!(transfer(&[0; 215]), None);
        assert_eq!(transfer(&[0; 216]), Some([0, 0]));
    }
}

//! Ends connections of selected applications from outside.
//!
//! The eBPF programs list the sockets (`bpf/socket_list.h`). The kernel ends each by its addresses and
//! cookie, as `ss -K` does. The application gets `ECONNABORTED`.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use taupe_os_linux::netlink::{NetlinkError, SockDiag, SocketId, SocketInfo};
use taupe_packet::ip::Family;

use crate::error::TransparentError;
use crate::records::{self, ANY_COOKIE, SocketRecord};

/// The kinds of sockets to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketKinds {
    /// TCP connections.
    Connections,
    /// TCP connections and UDP sockets, which may carry connections (QUIC).
    ConnectionsAndUdp,
}

/// Result of ending sockets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reset {
    /// Number of sockets ended.
    pub ended: usize,
    /// Number of sockets that could not be ended: on a kernel without `CONFIG_INET_DIAG_DESTROY`,
    /// or if several sockets have the same address and port (`SO_REUSEPORT`).
    pub left: usize,
}

impl Reset {
    /// Returns the sum.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            ended: self.ended + other.ended,
            left: self.left + other.left,
        }
    }
}

pub(crate) fn read(listed: &[u8]) -> Vec<Socket> {
    records::parse(listed).filter_map(Socket::new).collect()
}

/// Removes repeated entries for one socket.
pub(crate) fn without_repetitions(mut sockets: Vec<Socket>) -> Vec<Socket> {
    let mut seen = HashSet::new();
    sockets.retain(|socket| match socket.connection.cookie {
        ANY_COOKIE => true,
        cookie => seen.insert(cookie),
    });
    sockets
}

/// Ends sockets of `list` that are in the calling thread's network namespace. Listening sockets
/// stay open, since they carry no conversation.
///
/// Lists the sockets repeatedly until no new one appears, since a list made while sockets come and
/// go may lack some.
///
/// # Errors
///
/// [`TransparentError::Call`]: the netlink socket cannot be opened. Errors of `list`.
pub(crate) fn end(
    list: impl Fn() -> Result<Vec<Socket>, TransparentError>,
    which: SocketKinds,
) -> Result<Reset, TransparentError> {
    let outcome = try_to_end(list, which)?;
    Ok(Reset {
        ended: outcome.ended,
        left: outcome.left.len(),
    })
}

/// As [`end`], for sockets that must not continue.
///
/// # Errors
///
/// As [`end`]; [`TransparentError::OpenSockets`]: some cannot be ended.
pub(crate) fn end_all(
    list: impl Fn() -> Result<Vec<Socket>, TransparentError>,
) -> Result<(), TransparentError> {
    let mut left = try_to_end(&list, SocketKinds::ConnectionsAndUdp)?.left;
    if left.is_empty() {
        return Ok(());
    }
    // Some may have ended by themselves meanwhile.
    let listed = list()?;
    left.retain(|(socket, _)| listed.iter().any(|other| socket.is(other)));
    let Some((_, error)) = left.first() else {
        return Ok(());
    };
    let shown = left.iter().take(MAX_NAMED);
    let shown: Vec<String> = shown.map(|(socket, _)| socket.to_string()).collect();
    Err(TransparentError::OpenSockets {
        count: left.len(),
        examples: shown.join(", "),
        reason: match error.errno() {
            // The kernel has found another one.
            Some(libc::ENOENT | libc::ESTALE) => "other sockets have the same address".to_owned(),
            _ => error.to_string(),
        },
    })
}

/// Maximum number of sockets that an error names.
const MAX_NAMED: usize = 3;

/// The sockets that have been ended, and those that cannot be ended.
#[derive(Default)]
struct Outcome {
    ended: usize,
    left: Vec<(Socket, NetlinkError)>,
}

fn try_to_end(
    list: impl Fn() -> Result<Vec<Socket>, TransparentError>,
    which: SocketKinds,
) -> Result<Outcome, TransparentError> {
    let mut outcome = Outcome::default();
    let mut seen = Vec::new();
    // Bounded, since new sockets may appear all the time.
    for _ in 0..MAX_ROUNDS {
        let mut sockets = list()?;
        let is_new = |socket: &Socket| !seen.iter().any(|other: &Socket| socket.is(other));
        sockets.retain(|socket| socket.is_of_kind(which) && is_new(socket));
        if sockets.is_empty() {
            break;
        }
        let connections = SockDiag::open().map_err(io::Error::other);
        let mut connections = connections.map_err(TransparentError::call("ending connections"))?;
        for socket in &sockets {
            match connections.destroy(&socket.connection) {
                Ok(()) => outcome.ended += 1,
                Err(error) if socket.is_tcp() && error.source.kind() == io::ErrorKind::NotFound => {
                }
                Err(error) => outcome.left.push((*socket, error)),
            }
        }
        seen.extend(sockets);
    }
    Ok(outcome)
}

/// Maximum number of listings.
const MAX_ROUNDS: usize = 10;

/// Socket states (`include/net/tcp_states.h`).
const TCP_CLOSE: u16 = 7;
const TCP_LISTEN: u16 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Socket {
    pub(crate) connection: SocketId,
    state: u16,
    /// True if no rule selects the socket any more.
    pub(crate) is_leaving: bool,
}

impl Socket {
    /// Returns `None` for a socket of another family, or with a protocol number that has more than
    /// eight bits (MPTCP). Such a socket has no addresses of these families.
    fn new(record: SocketRecord) -> Option<Self> {
        let family = match i32::from(record.family) {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return None,
        };
        Some(Self {
            connection: SocketId {
                protocol: u8::try_from(record.protocol).ok()?,
                family,
                addresses: [record.local, record.remote],
                ports: [record.local_port, u16::from_be_bytes(record.remote_port)],
                interface: record.interface,
                cookie: record.cookie,
            },
            state: record.state,
            is_leaving: record.is_leaving != 0,
        })
    }

    /// Returns a socket that the kernel has listed by netlink.
    pub(crate) fn listed(info: &SocketInfo) -> Self {
        Self {
            connection: info.id,
            state: info.state.into(),
            is_leaving: false,
        }
    }

    /// Returns true if both entries are for the same socket, in whatever state. The kernel may have
    /// assigned its cookie after one of them was listed.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let (one, other) = (&self.connection, &other.connection);
        if one.cookie != ANY_COOKIE && other.cookie != ANY_COOKIE {
            return one.cookie == other.cookie;
        }
        let without_cookie = |connection: &SocketId| SocketId {
            cookie: ANY_COOKIE,
            ..*connection
        };
        without_cookie(one) == without_cookie(other)
    }

    pub(crate) fn is_of_kind(&self, which: SocketKinds) -> bool {
        match i32::from(self.connection.protocol) {
            libc::IPPROTO_TCP => ![TCP_CLOSE, TCP_LISTEN].contains(&self.state),
            libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE => {
                let [local, _] = self.connection.ports;
                which == SocketKinds::ConnectionsAndUdp && local != 0
            }
            _ => false,
        }
    }

    fn is_tcp(&self) -> bool {
        i32::from(self.connection.protocol) == libc::IPPROTO_TCP
    }
}

/// Its protocol and addresses.
impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SocketId {
            family, addresses, ..
        } = self.connection;
        let [local, remote] = addresses.map(|address| match (family, address) {
            (Family::V4, [a, b, c, d, ..]) => IpAddr::from(Ipv4Addr::new(a, b, c, d)),
            (Family::V6, address) => Ipv6Addr::from(address).to_canonical(),
        });
        let [own, others] = self.connection.ports;
        let name = if self.is_tcp() { "TCP" } else { "UDP" };
        write!(f, "{name} {}", SocketAddr::new(local, own))?;
        match others {
            0 => Ok(()),
            _ => write!(f, " to {}", SocketAddr::new(remote, others)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: SocketRecord = SocketRecord {
        cookie: 7,
        local: [0; 16],
        remote: [0; 16],
        interface: 3,
        local_port: 1234,
        remote_port: 80_u16.to_be_bytes(),
        family: libc::AF_INET as u16,
        protocol: libc::IPPROTO_TCP as u16,
        state: 1,
        is_leaving: 0,
    };

    #[test]
    fn socket_records_are_decoded() {
        let mut record = RECORD;
        record.remote[..4].copy_from_slice(&[198, 51, 100, 1]);
        let socket = Socket::new(record).expect("a socket");
        let connection = socket.connection;
        assert!(socket.is_tcp());
        assert_eq!((connection.ports, connection.cookie), ([1234, 80], 7));
        assert_eq!((connection.interface, socket.state), (3, 1));
        assert_eq!(connection.addresses[1][..4], [198, 51, 100, 1]);
        assert!(!socket.is_leaving);
        record.is_leaving = 1;
        assert!(Socket::new(record).expect("a socket").is_leaving);
        record.family = libc::AF_UNIX as u16;
        assert_eq!(Socket::new(record), None);
        // The number of MPTCP needs more than one byte.
        record.family = libc::AF_INET as u16;
        record.protocol = 262;
        assert_eq!(Socket::new(record), None);
    }

    #[test]
    fn sockets_are_identified_by_cookie_or_else_by_addresses() {
        let with = |cookie, port: u16, state| {
            let record = SocketRecord {
                cookie,
                remote_port: port.to_be_bytes(),
                state,
                ..RECORD
            };
            Socket::new(record).expect("a socket")
        };
        assert!(with(7, 0, 7).is(&with(7, 80, 1)));
        assert!(!with(7, 80, 1).is(&with(8, 80, 1)));
        assert!(with(ANY_COOKIE, 80, 1).is(&with(ANY_COOKIE, 80, 4)));
        assert!(!with(ANY_COOKIE, 80, 1).is(&with(ANY_COOKIE, 81, 1)));
        assert!(with(ANY_COOKIE, 80, 1).is(&with(7, 80, 1)));
        assert!(with(7, 80, 1).is(&with(ANY_COOKIE, 80, 1)));
        assert!(!with(7, 80, 1).is(&with(ANY_COOKIE, 81, 1)));
    }

    #[test]
    fn sockets_are_named_by_protocol_and_addresses() {
        let mut record = RECORD;
        record.local[..4].copy_from_slice(&[192, 0, 2, 2]);
        record.remote[..4].copy_from_slice(&[198, 51, 100, 1]);
        let name = |record| Socket::new(record).expect("a socket").to_string();
        assert_eq!(name(record), "TCP 192.0.2.2:1234 to 198.51.100.1:80");
        record.family = libc::AF_INET6 as u16;
        record.protocol = libc::IPPROTO_UDP as u16;
        (record.local, record.remote_port) = ([0; 16], [0; 2]);
        assert_eq!(name(record), "UDP [::]:1234");
    }

    #[test]
    fn a_socket_of_several_processes_is_listed_once() {
        let with = |cookie| Socket::new(SocketRecord { cookie, ..RECORD });
        let listed = [7, 8, 7, ANY_COOKIE, ANY_COOKIE].map(with);
        let once = without_repetitions(listed.into_iter().flatten().collect());
        let cookies: Vec<u64> = once.iter().map(|it| it.connection.cookie).collect();
        assert_eq!(cookies, [7, 8, ANY_COOKIE, ANY_COOKIE]);
    }
}

//! Ends connections of chosen applications from outside.
//!
//! The kernel's part lists their sockets (`bpf/listing.h`), and the kernel ends each by
//! its addresses and number, as `ss -K` has it. A program is told `ECONNABORTED`.

use std::io;

use taupe_os_linux::netlink::{Connection, Connections};
use taupe_packet::ip::Family;

use crate::fault::Fault;

/// Which of the chosen applications' sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// Connections of TCP.
    Connections,
    /// Those, and sockets of UDP, which may have connections in them (QUIC).
    Conversations,
}

/// What has become of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reset {
    /// So many have been ended.
    pub ended: usize,
    /// So many could not be ended: on a kernel without `CONFIG_INET_DIAG_DESTROY`, and
    /// where others have the same address and port (`SO_REUSEPORT`).
    pub left: usize,
}

/// The sockets that are listed.
pub(crate) fn read(listed: &[u8]) -> Vec<Socket> {
    let (sockets, _) = listed.as_chunks();
    sockets.iter().filter_map(Socket::read).collect()
}

/// Ends some of the sockets that `list` has, which are in the calling thread's network
/// namespace. Those that listen stay: a new connection is nobody's secret yet.
///
/// They are listed again until there is none that has not been seen: a list that is made
/// while sockets come and go may lack one.
///
/// # Errors
///
/// [`Fault::Call`]: no socket can be had to ask for it. Those of `list`.
pub(crate) fn end(
    list: impl Fn() -> Result<Vec<Socket>, Fault>,
    which: Which,
) -> Result<Reset, Fault> {
    let mut reset = Reset::default();
    let mut seen = Vec::new();
    // Some more may come all the time.
    for _ in 0..ROUNDS {
        let mut sockets = list()?;
        let is_new = |socket: &Socket| !seen.iter().any(|other: &Socket| socket.is(other));
        sockets.retain(|socket| socket.is_in(which) && is_new(socket));
        if sockets.is_empty() {
            break;
        }
        let connections = Connections::open().map_err(io::Error::other);
        let mut connections = connections.map_err(Fault::call("ending connections"))?;
        for socket in &sockets {
            match connections.end(&socket.connection) {
                Ok(()) => reset.ended += 1,
                Err(error) if socket.is_tcp() && error.source.kind() == io::ErrorKind::NotFound => {
                }
                Err(_) => reset.left += 1,
            }
        }
        seen.extend(sockets);
    }
    Ok(reset)
}

/// How often sockets are listed at most.
const ROUNDS: usize = 10;

/// States of sockets (`include/net/tcp_states.h`).
const TCP_CLOSE: u16 = 7;
const TCP_LISTEN: u16 = 10;

/// What subflows of MPTCP are listed with that nobody has asked for theirs.
const ANY_COOKIE: u64 = u64::MAX;

/// Bytes of `struct chosen_socket`.
const SIZE: usize = 56;

/// A socket that is listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Socket {
    pub(crate) connection: Connection,
    state: u16,
    /// Nobody chooses it any more.
    pub(crate) is_leaving: bool,
}

impl Socket {
    fn read(bytes: &[u8; SIZE]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let address = |at: usize| bytes.get(at..)?.first_chunk().copied();
        let family = match i32::from(half(48)?) {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return None,
        };
        Some(Self {
            connection: Connection {
                // Those of more bits have no addresses of these kinds.
                protocol: u8::try_from(half(50)?).ok()?,
                family,
                addresses: [address(8)?, address(24)?],
                ports: [half(44)?, u16::from_be(half(46)?)],
                interface: word(40)?,
                cookie: u64::from_ne_bytes(*bytes.first_chunk()?),
            },
            state: half(52)?,
            is_leaving: half(54)? != 0,
        })
    }

    /// Whether it is the same, whatever has become of it.
    fn is(&self, other: &Self) -> bool {
        match self.connection.cookie {
            ANY_COOKIE => self.connection == other.connection,
            cookie => cookie == other.connection.cookie,
        }
    }

    /// Whether it is one of these.
    fn is_in(&self, which: Which) -> bool {
        match i32::from(self.connection.protocol) {
            libc::IPPROTO_TCP => ![TCP_CLOSE, TCP_LISTEN].contains(&self.state),
            libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE => {
                let [local, _] = self.connection.ports;
                which == Which::Conversations && local != 0
            }
            _ => false,
        }
    }

    fn is_tcp(&self) -> bool {
        i32::from(self.connection.protocol) == libc::IPPROTO_TCP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_as_they_are_listed() {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&7_u64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&[192, 0, 2, 1]);
        bytes[24..28].copy_from_slice(&[198, 51, 100, 1]);
        bytes[40..44].copy_from_slice(&3_u32.to_ne_bytes());
        bytes[44..46].copy_from_slice(&1234_u16.to_ne_bytes());
        bytes[46..48].copy_from_slice(&80_u16.to_be_bytes());
        bytes[48..50].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[50..52].copy_from_slice(&6_u16.to_ne_bytes());
        bytes[52..54].copy_from_slice(&1_u16.to_ne_bytes());
        let socket = Socket::read(&bytes).expect("a socket");
        let connection = socket.connection;
        assert!(socket.is_tcp());
        assert_eq!((connection.ports, connection.cookie), ([1234, 80], 7));
        assert_eq!((connection.interface, socket.state), (3, 1));
        assert_eq!(connection.addresses[1][..4], [198, 51, 100, 1]);
        assert!(!socket.is_leaving);
        bytes[54] = 1;
        assert!(Socket::read(&bytes).expect("a socket").is_leaving);
        bytes[48] = libc::AF_UNIX as u8;
        assert_eq!(Socket::read(&bytes), None);
        // MPTCP's number is longer than a byte.
        bytes[48] = libc::AF_INET as u8;
        bytes[50..52].copy_from_slice(&262_u16.to_ne_bytes());
        assert_eq!(Socket::read(&bytes), None);
    }

    #[test]
    fn sockets_are_known_by_their_numbers_or_else_by_their_ends() {
        let with = |cookie: u64, port: u16, state: u32| {
            let mut bytes = [0; SIZE];
            bytes[..8].copy_from_slice(&cookie.to_ne_bytes());
            bytes[44..46].copy_from_slice(&port.to_ne_bytes());
            bytes[48..50].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[52..56].copy_from_slice(&state.to_ne_bytes());
            Socket::read(&bytes).expect("a socket")
        };
        assert!(with(7, 0, 7).is(&with(7, 80, 1)));
        assert!(!with(7, 80, 1).is(&with(8, 80, 1)));
        assert!(with(ANY_COOKIE, 80, 1).is(&with(ANY_COOKIE, 80, 4)));
        assert!(!with(ANY_COOKIE, 80, 1).is(&with(ANY_COOKIE, 81, 1)));
    }
}

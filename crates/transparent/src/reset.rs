//! Ends connections of selected applications from outside.
//!
//! The eBPF programs list the sockets (`bpf/listing.h`). The kernel ends each by its addresses and
//! cookie, as `ss -K` does. The application gets `ECONNABORTED`.

use std::io;

use taupe_os_linux::netlink::{SockDiag, SocketId};
use taupe_packet::ip::Family;

use crate::fault::Fault;

/// The kinds of sockets to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// TCP connections.
    Connections,
    /// TCP connections and UDP sockets, which may carry connections (QUIC).
    Conversations,
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

pub(crate) fn read(listed: &[u8]) -> Vec<Socket> {
    let (sockets, _) = listed.as_chunks();
    sockets.iter().filter_map(Socket::read).collect()
}

/// Ends sockets of `list` that are in the calling thread's network namespace. Listening sockets
/// stay open, since they carry no conversation.
///
/// Lists the sockets repeatedly until no new one appears, since a list made while sockets come and
/// go may lack some.
///
/// # Errors
///
/// [`Fault::Call`]: the netlink socket cannot be opened. Errors of `list`.
pub(crate) fn end(
    list: impl Fn() -> Result<Vec<Socket>, Fault>,
    which: Which,
) -> Result<Reset, Fault> {
    let mut reset = Reset::default();
    let mut seen = Vec::new();
    // Bounded, since new sockets may appear all the time.
    for _ in 0..ROUNDS {
        let mut sockets = list()?;
        let is_new = |socket: &Socket| !seen.iter().any(|other: &Socket| socket.is(other));
        sockets.retain(|socket| socket.is_in(which) && is_new(socket));
        if sockets.is_empty() {
            break;
        }
        let connections = SockDiag::open().map_err(io::Error::other);
        let mut connections = connections.map_err(Fault::call("ending connections"))?;
        for socket in &sockets {
            match connections.destroy(&socket.connection) {
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

/// Maximum number of listings.
const ROUNDS: usize = 10;

/// Socket states (`include/net/tcp_states.h`).
const TCP_CLOSE: u16 = 7;
const TCP_LISTEN: u16 = 10;

/// Cookie of MPTCP subflows in the list if the kernel has not assigned one yet.
const ANY_COOKIE: u64 = u64::MAX;

/// Size of `struct chosen_socket` in bytes.
const SIZE: usize = 56;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Socket {
    pub(crate) connection: SocketId,
    state: u16,
    /// True if no rule selects the socket any more.
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
            connection: SocketId {
                // A protocol number that needs more than eight bits (MPTCP) has no addresses of
                // these families.
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

    /// Returns true if both entries are for the same socket, in whatever state.
    fn is(&self, other: &Self) -> bool {
        match self.connection.cookie {
            ANY_COOKIE => self.connection == other.connection,
            cookie => cookie == other.connection.cookie,
        }
    }

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
        // The number of MPTCP needs more than one byte.
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

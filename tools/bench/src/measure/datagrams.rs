//! Two UDP sockets, one on each machine, that know each other.

use crate::session::Session;
use nix::sys::socket::{setsockopt, sockopt};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use taupe_lab::error::{Error, Result};

/// A connected pair: whatever does not come from the other is not received.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) client: UdpSocket,
    pub(super) server: UdpSocket,
}

impl Datagrams {
    /// Opens them; nothing is sent. On the server's side the address is the session's
    /// target, on the client's what the system chooses for it. The server knows that by the
    /// address at which it reaches the client: transparent mode translates.
    pub(super) fn open(session: &Session) -> Result<Self> {
        Self::join(session, session.target(), Some(session.client.address))
    }

    /// As [`open`](Self::open), past the tunnel to another address of the server's machine.
    pub(super) fn open_at(session: &Session, target: IpAddr) -> Result<Self> {
        Self::join(session, target, None)
    }

    fn join(session: &Session, target: IpAddr, client_is: Option<IpAddr>) -> Result<Self> {
        let any: IpAddr = match target {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let failed = || Error::io(format!("UDP sockets to measure {target} with"));
        let bind = |address: IpAddr| move || UdpSocket::bind((address, 0)).map_err(failed());
        let server = session.pair.server.enter(bind(target))?;
        let client = session.pair.client.enter(bind(any))?;
        let address = server.local_addr().map_err(failed())?;
        client.connect(address).map_err(failed())?;
        let mut address = client.local_addr().map_err(failed())?;
        address.set_ip(client_is.unwrap_or(address.ip()));
        server.connect(address).map_err(failed())?;
        Ok(Self { client, server })
    }

    /// Has the server's side get datagrams that were merged on their way as one message,
    /// which leaves more of the machine to the tunnel.
    pub(super) fn merge(&self) -> Result<()> {
        let set = setsockopt(&self.server, sockopt::UdpGroSegment, &true);
        set.map_err(Error::io("merging of datagrams (UDP_GRO)"))
    }

    /// Has the kernel cut what the client's side sends into datagrams of so many bytes.
    pub(super) fn segment(&self, length: usize) -> Result<()> {
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        let set = setsockopt(&self.client, sockopt::UdpGsoSegment, &length);
        set.map_err(Error::io("cutting of messages (UDP_SEGMENT)"))
    }

    /// How many messages the server's side had no place for.
    pub(super) fn overflowed(&self, session: &Session) -> Result<u64> {
        let address = self.server.local_addr();
        let address = address.map_err(Error::io("the receiver's address"))?;
        let table = match address {
            SocketAddr::V4(_) => "/proc/thread-self/net/udp",
            SocketAddr::V6(_) => "/proc/thread-self/net/udp6",
        };
        let server = &session.pair.server;
        let text = server.enter(|| fs::read_to_string(table).map_err(Error::io(table)))?;
        drops(&text, address.port()).ok_or_else(|| Error::Malformed {
            what: table.to_owned(),
            why: format!("it has no drops of port {}: {text}", address.port()),
        })
    }
}

/// Reads the drops of the socket at that port from `/proc/net/udp`, whose columns
/// `proc_net(5)` lists: the local address with the port is the second, drops the last.
fn drops(table: &str, port: u16) -> Option<u64> {
    let port = format!(":{port:04X}");
    let mut lines = table.lines().skip(1).map(str::split_whitespace);
    let line = lines.find(|words| {
        let address = words.clone().nth(1);
        address.is_some_and(|address| address.ends_with(&port))
    })?;
    line.last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_those_of_the_port() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
            retrnsmt   uid  timeout inode ref pointer drops             \n \
            1014: 020200C0:C0DE 010200C0:1234 01 00000000:00000000 00:00000000 00000000     \
            0        0 30713 2 0000000000000000 17        \n \
            1015: 00000000:1234 00000000:0000 07 00000000:00000000 00:00000000 00000000     \
            0        0 30714 2 0000000000000000 0         \n";
        assert_eq!(drops(table, 0xc0de), Some(17));
        assert_eq!(drops(table, 0x1234), Some(0));
        assert_eq!(drops(table, 0xde), None);
        assert_eq!(drops("", 1), None);
    }
}

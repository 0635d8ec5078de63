//! Two connected UDP sockets, one on each machine.

use crate::session::Session;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use taupe_lab::error::{Error, Result};
use taupe_os_linux::socket_option::{self, IntOption};

/// A connected pair: each socket receives from the other only.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) client: UdpSocket,
    pub(super) server: UdpSocket,
}

impl Datagrams {
    /// Opens the pair without sending anything. The server's socket has the session's target
    /// address; the system chooses the client's. The server connects to the address by which it
    /// reaches the client, because transparent mode translates addresses.
    pub(super) fn open(session: &Session) -> Result<Self> {
        Self::join(session, session.target(), Some(session.client.address))
    }

    /// As [`open`](Self::open), outside the tunnel, to another address of the server's machine.
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

    /// Lets the server's side receive datagrams merged on their path as one message, which costs
    /// less processor time.
    pub(super) fn merge(&self) -> Result<()> {
        let set = socket_option::set(self.server.as_fd(), IntOption::Gro, 1);
        set.map_err(Error::io("merging of datagrams (UDP_GRO)"))
    }

    /// Lets the kernel split messages of the client's side into datagrams of `length` bytes.
    pub(super) fn segment(&self, length: usize) -> Result<()> {
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        let set = socket_option::set(self.client.as_fd(), IntOption::Segment, length);
        set.map_err(Error::io("cutting of messages (UDP_SEGMENT)"))
    }

    /// Returns the number of messages dropped at the server's full buffer.
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

/// Parses the drops of the socket at a port from `/proc/net/udp`. By `proc_net(5)` the second
/// column is the local address with the port, and the last one the drops.
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

//! SOCKS 5 `UDP ASSOCIATE` (RFC 1928 §7): relays one client's datagrams, with one port on each
//! side.
//!
//! Datagrams are accepted only from the client's host: from the port that the request named, or
//! else from the port that sends first. Only hosts to which the client has sent may answer.

use crate::address::{Host, Target};
use crate::net::{ClientId, Net, Waiter};
use crate::socks;
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use taupe_stack::failure::ConnectFailure;
use taupe_stack::limits::BATCH;

/// Hosts that may answer; the oldest is forgotten first.
const MAX_HOSTS: usize = 256;

/// Datagrams that may wait for a look-up.
const MAX_WAITING: usize = 64;

/// The longest datagram of a client, in bytes.
const LONGEST: usize = 65_536;

/// One client's UDP association.
pub(crate) struct Association {
    socket: UdpSocket,
    /// Port in the tunnel.
    local_port: u16,
    host: IpAddr,
    /// Address of the client's socket, once known.
    client: Option<SocketAddr>,
    hosts: VecDeque<IpAddr>,
    /// Payloads with destination ports that wait for a look-up, by number.
    waiting: HashMap<u64, (u16, Vec<u8>)>,
    next: u64,
    message: Vec<u8>,
}

impl Association {
    /// Opens a socket at the local address by which the client of `host` reached the proxy. A
    /// dual-stack listener reports an IPv4 address in IPv6 form; the socket then has the plain IPv4
    /// address, because the client cannot send to the other.
    pub(crate) fn open(
        at: IpAddr,
        host: IpAddr,
        port: Option<u16>,
        local_port: u16,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut socket = UdpSocket::bind(SocketAddr::new(at.to_canonical(), 0))?;
        registry.register(&mut socket, token, Interest::READABLE)?;
        Ok(Self {
            socket,
            local_port,
            host,
            client: port.map(|port| SocketAddr::new(host, port)),
            hosts: VecDeque::new(),
            waiting: HashMap::new(),
            next: 0,
            message: Vec::new(),
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn local_port(&self) -> u16 {
        self.local_port
    }

    /// Reads datagrams from the client. Returns true if there may be more.
    pub(crate) fn receive(&mut self, id: ClientId, net: &mut Net) -> bool {
        let mut buffer = std::mem::take(&mut self.message);
        buffer.resize(LONGEST, 0);
        let mut is_more = true;
        for _ in 0..BATCH {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    if let Some(datagram) = buffer.get(..length) {
                        self.forward(id, net, from, datagram);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    is_more = false;
                    break;
                }
                // An earlier datagram to the client's port was refused (ICMP), or a signal came.
                Err(_) => {}
            }
        }
        self.message = buffer;
        is_more
    }

    fn forward(&mut self, id: ClientId, net: &mut Net, from: SocketAddr, datagram: &[u8]) {
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let is_client = match self.client {
            Some(client) => client == from,
            None => self.host == from.ip(),
        };
        let Some((Target { host, port }, payload)) = socks::parse_datagram(datagram) else {
            return;
        };
        if !is_client {
            return;
        }
        self.client = Some(from);
        match host {
            Host::Address(address) => self.send(net, SocketAddr::new(address, port), payload),
            // Payloads that are too long to be sent do not wait.
            Host::Name(name) if self.waiting.len() < MAX_WAITING && payload.len() <= net.mtu() => {
                self.next += 1;
                self.waiting.insert(self.next, (port, payload.to_vec()));
                net.resolve(&name, Waiter::Datagram(id, self.next));
            }
            Host::Name(_) => {}
        }
    }

    /// Handles the result of a look-up for the datagram with this number.
    pub(crate) fn handle_resolved(
        &mut self,
        number: u64,
        result: Result<Vec<IpAddr>, ConnectFailure>,
        net: &mut Net,
    ) {
        let Some((port, payload)) = self.waiting.remove(&number) else {
            return;
        };
        let addresses = result.unwrap_or_default();
        let reachable = addresses
            .into_iter()
            .find(|address| net.source_for(*address).is_ok());
        if let Some(address) = reachable {
            self.send(net, SocketAddr::new(address, port), &payload);
        }
    }

    fn send(&mut self, net: &mut Net, to: SocketAddr, payload: &[u8]) {
        if !self.hosts.contains(&to.ip()) {
            if self.hosts.len() >= MAX_HOSTS {
                self.hosts.pop_front();
            }
            self.hosts.push_back(to.ip());
        }
        net.send_datagram(self.local_port, to, payload);
    }

    /// Sends a datagram from the tunnel to the client.
    pub(crate) fn deliver(&mut self, from: SocketAddr, payload: &[u8]) {
        if let (Some(client), true) = (self.client, self.hosts.contains(&from.ip())) {
            socks::write_datagram(from, payload, &mut self.message);
            // If the client's system has no room, the datagram is dropped.
            let _ = self.socket.send_to(&self.message, client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::Poll;
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use taupe_protocol::update::DeviceUpdate;
    use taupe_runtime::resolver::SystemResolver;
    use taupe_runtime::services::Services;
    use taupe_stack::settings::{Addresses, Settings};

    const MTU: usize = 1420;

    fn net(registry: &Registry) -> Net {
        // There is no private key, so no state is read or written there.
        let folder = std::env::temp_dir();
        let resolver = Arc::new(SystemResolver::default());
        let settings = Settings {
            device: DeviceUpdate::default(),
            listen_port: 0,
            addresses: Addresses {
                v4: Some(Ipv4Addr::new(10, 0, 0, 2)),
                v6: None,
            },
            mtu: MTU,
            dns: Vec::new(),
            keepalive: None,
            services: Services::new(Some(&folder), resolver, Arc::new(|| {})),
            notices: None,
        };
        let net = Net::open(settings, registry, [Token(1), Token(2)]);
        net.ok().unwrap()
    }

    fn open(at: &str, registry: &Registry) -> Association {
        let host = Ipv4Addr::LOCALHOST.into();
        let at = at.parse().unwrap();
        Association::open(at, host, None, 40_000, registry, Token(3)).unwrap()
    }

    #[test]
    fn an_oversized_datagram_starts_no_look_up() {
        let poll = Poll::new().unwrap();
        let mut net = net(poll.registry());
        let mut association = open("127.0.0.1", poll.registry());
        let id = ClientId {
            number: 0,
            serial: 1,
        };
        let mut waiting_after = |length: usize| {
            let name = b"example.org";
            let mut datagram = vec![0, 0, 0, 3, name.len() as u8];
            datagram.extend(name);
            datagram.extend(53u16.to_be_bytes());
            datagram.resize(datagram.len() + length, 0);
            association.forward(id, &mut net, "127.0.0.1:5000".parse().unwrap(), &datagram);
            association.waiting.len()
        };
        assert_eq!(waiting_after(MTU + 1), 0);
        assert_eq!(waiting_after(1000), 1);
        assert_eq!(waiting_after(60_000), 1);
    }

    #[test]
    fn an_ipv4_client_of_a_dual_stack_listener_gets_an_ipv4_address() {
        let poll = Poll::new().unwrap();
        let association = open("::ffff:127.0.0.1", poll.registry());
        let address = association.address().unwrap();
        assert_eq!(address.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}

//! State that all clients share: the tunnel, its addresses, and the owners of its ports.

use crate::address::{Name, is_routable};
use crate::dns::Resolver;
use crate::failure::ConnectFailure;
use crate::limits::REASSEMBLY_BYTES;
use crate::outgoing::Outgoing;
use crate::packet::{FourTuple, push_udp};
use crate::stream::{BufferBudget, Stream};
use crate::tunnel::Tunnel;
use crate::warning::Warning;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use taupe_nat::reassembly::Reassembly;
use taupe_protocol::Random as _;
use taupe_protocol::time::Instant;
use taupe_runtime::random::SystemRandom;
use tracing::warn;

/// Local ports of connections and associations. Those below are for DNS queries.
const LOCAL_PORTS: RangeInclusive<u16> = 32768..=65535;

/// Attempts to find a free port.
const PORT_TRIES: usize = 64;

/// Identity of a client. Numbers are reused, serials are not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ClientId {
    pub(crate) number: usize,
    pub(crate) serial: u64,
}

/// Owner of a connection through the tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Owner {
    Client(usize),
    /// The DNS query with this local port.
    DnsQuery(u16),
}

/// Client or datagram that waits for a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    Client(ClientId),
    /// A datagram of an association, by its number.
    Datagram(ClientId, u64),
}

/// Addresses of this side of the tunnel: the first of each family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Addresses {
    pub(crate) v4: Option<Ipv4Addr>,
    pub(crate) v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// Returns the address in the family of `remote`.
    fn matching(self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }
}

/// State that all clients share.
pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) tunnel: Tunnel,
    pub(crate) outgoing: Outgoing,
    pub(crate) reassembly: Reassembly,
    pub(crate) resolver: Resolver<Waiter>,
    pub(crate) servers: Vec<IpAddr>,
    pub(crate) flows: HashMap<FourTuple, Owner>,
    /// Clients with associations, by local port.
    pub(crate) associations: HashMap<u16, usize>,
    /// Owners of connections that had more to send than there was room for.
    pub(crate) stalled: HashSet<Owner>,
    pub(crate) clients: usize,
    addresses: Addresses,
    /// MTU of the tunnel, in bytes.
    pub(crate) mtu: usize,
    buffers: BufferBudget,
    handshake_warning: Warning,
}

impl Net {
    pub(crate) fn new(
        tunnel: Tunnel,
        addresses: Addresses,
        servers: Vec<IpAddr>,
        mtu: usize,
    ) -> Self {
        let (v4, v6) = (addresses.v4.is_some(), addresses.v6.is_some());
        let is_routed =
            |server: &IpAddr| addresses.matching(*server).is_some() && tunnel.has_route(*server);
        let servers: Vec<_> = servers.into_iter().filter(is_routed).collect();
        Self {
            now: Instant::default(),
            resolver: Resolver::new(servers.clone(), v4, v6, || SystemRandom.number()),
            servers,
            tunnel,
            outgoing: Outgoing::new(mtu),
            reassembly: Reassembly::new(REASSEMBLY_BYTES),
            flows: HashMap::new(),
            associations: HashMap::new(),
            stalled: HashSet::new(),
            clients: 0,
            addresses,
            mtu,
            buffers: BufferBudget::new(),
            handshake_warning: Warning::default(),
        }
    }

    /// Returns the source address of packets to `remote`. Fails if the tunnel does not route there.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Result<IpAddr, ConnectFailure> {
        let local = self.addresses.matching(remote);
        let is_routed = is_routable(remote) && self.tunnel.has_route(remote);
        local.filter(|_| is_routed).ok_or(ConnectFailure::Network)
    }

    /// Returns the source address of packets to `remote`, without a check of the routes.
    pub(crate) fn local_address_for(&self, remote: IpAddr) -> Option<IpAddr> {
        self.addresses.matching(remote)
    }

    pub(crate) fn resolve(&mut self, name: &Name, waiter: Waiter) {
        self.resolver.resolve(self.now, name, waiter);
    }

    /// Refines a failed look-up: if no handshake with the servers' peers succeeds, the tunnel has
    /// failed.
    pub(crate) fn refine_failure(&self, failure: ConnectFailure) -> ConnectFailure {
        let is_silent =
            |server: &IpAddr| self.tunnel.failure_for(self.now, *server) == ConnectFailure::Tunnel;
        match failure {
            ConnectFailure::NameServers if self.servers.iter().all(is_silent) => {
                ConnectFailure::Tunnel
            }
            failure => failure,
        }
    }

    /// Logs that a client failed because no handshake succeeds, at most once a minute. Does nothing
    /// if a notice tells the user so. That leaves peers without an endpoint, which must begin the
    /// handshake themselves.
    pub(crate) fn warn_no_handshake(&mut self) {
        if !self.tunnel.has_reported_silence() && self.handshake_warning.is_due(self.now) {
            warn!(
                "no handshake: the tunnel's peer does not answer, and connections are refused; \
                 check Endpoint, PublicKey and PresharedKey, and that the peer knows this public \
                 key"
            );
        }
    }

    /// Begins a connection.
    pub(crate) fn connect(
        &mut self,
        remote: SocketAddr,
        owner: Owner,
    ) -> Result<Stream, ConnectFailure> {
        let local = self.source_for(remote.ip())?;
        let four_tuple = |port| FourTuple {
            local: SocketAddr::new(local, port),
            remote,
        };
        let mut ports = std::iter::repeat_with(random_port).take(PORT_TRIES);
        let free = ports.find(|port| !self.flows.contains_key(&four_tuple(*port)));
        let four_tuple = four_tuple(free.ok_or(ConnectFailure::Busy)?);
        let seed = u64::from(SystemRandom.number()) << 32 | u64::from(SystemRandom.number());
        let windows = self.buffers.allot();
        let stream = Stream::connect(self.now, four_tuple.local, remote, self.mtu, windows, seed);
        let Some(stream) = stream else {
            self.buffers.release(windows);
            return Err(ConnectFailure::Refused);
        };
        self.flows.insert(four_tuple, owner);
        Ok(stream)
    }

    /// Sends all segments of a connection. If there is no room, notes its owner, which is served
    /// again as soon as there is.
    pub(crate) fn pump(&mut self, stream: &mut Stream, owner: Owner) {
        while !stream.send(self.now, &mut self.outgoing) {
            self.tunnel.send(&mut self.outgoing);
            if !self.outgoing.has_room() {
                self.stalled.insert(owner);
                return;
            }
        }
    }

    /// Frees a closed connection's port and memory.
    pub(crate) fn release(&mut self, stream: Stream) {
        self.flows.remove(&FourTuple {
            local: stream.local,
            remote: stream.remote,
        });
        self.buffers.release(stream.windows);
    }

    /// Resets a connection.
    pub(crate) fn abort(&mut self, mut stream: Stream) {
        stream.socket().abort();
        // If there is no room for the RST, the other side times out.
        stream.send(self.now, &mut self.outgoing);
        self.release(stream);
    }

    /// Reserves a local port for an association.
    pub(crate) fn reserve_port(&mut self, client: usize) -> Option<u16> {
        let mut ports = std::iter::repeat_with(random_port).take(PORT_TRIES);
        let port = ports.find(|port| !self.associations.contains_key(port))?;
        self.associations.insert(port, client);
        Some(port)
    }

    /// Sends a datagram. Drops it if the tunnel does not route there or if it exceeds the MTU.
    pub(crate) fn send_datagram(&mut self, local_port: u16, remote: SocketAddr, payload: &[u8]) {
        let Ok(local) = self.source_for(remote.ip()) else {
            return;
        };
        let four_tuple = FourTuple {
            local: SocketAddr::new(local, local_port),
            remote,
        };
        if !self.outgoing.has_room() {
            self.tunnel.send(&mut self.outgoing);
        }
        if self.outgoing.has_room() {
            push_udp(&mut self.outgoing, self.mtu, four_tuple, payload);
        }
    }
}

fn random_port() -> u16 {
    LOCAL_PORTS.start() | SystemRandom.number() as u16
}

#[cfg(test)]
mod tests;

//! One tunnel with its connections, ports and look-ups.
//!
//! The user waits with mio, then does one turn:
//!
//! 1. [`Net::note`] for each event, then [`Net::begin_turn`].
//! 2. [`receive`], which passes the packets from the tunnel to a callback. It calls [`Net::deliver`]
//!    for the segments of its connections.
//! 3. Its own work. [`Net::poll_resolved`] until it returns `None`.
//! 4. [`Net::end_turn`].
//!
//! It then waits until [`Net::next_deadline`], or not at all while [`Net::is_busy`].

use crate::OpenError;
use crate::buffers::BufferBudget;
use crate::dns::Resolver;
use crate::failure::ConnectFailure;
use crate::half_open::HalfOpenTable;
use crate::keepalive::Keepalive;
use crate::limits::REASSEMBLY_BYTES;
use crate::outgoing::Outgoing;
use crate::packet::{FourTuple, push_udp};
use crate::reset::Resets;
use crate::settings::{Settings, Sources};
use crate::stream::Stream;
use crate::tcp_query::TcpQuery;
use crate::tunnel::{MAX_DATAGRAM, Tunnel};
use crate::warning::Warning;
use mio::event::Event;
use mio::{Registry, Token};
use smoltcp::socket::tcp::State;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use taupe_nat::reassembly::Reassembly;
use taupe_protocol::Random as _;
use taupe_protocol::time::Instant;
use taupe_protocol::update::DeviceStatus;
use taupe_runtime::clock::now;
use taupe_runtime::random::SystemRandom;
use tracing::warn;

pub use arrivals::{Arrival, receive};

/// Local ports of connections and of users that leave the choice to this crate. Those of DNS
/// queries are below.
const LOCAL_PORTS: RangeInclusive<u16> = 32768..=65535;

/// Attempts to find a free port.
const PORT_TRIES: usize = 64;

/// Owner of a connection through the tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Owner<C> {
    User(C),
    /// The DNS query with this local port.
    DnsQuery(u16),
}

/// A tunnel with its connections, ports and look-ups. `C` identifies the users' connections and
/// ports, `W` what waits for a look-up.
pub struct Net<C, W> {
    /// Time of the current turn.
    pub now: Instant,
    tunnel: Tunnel,
    /// Buffer for received datagrams.
    buffer: Vec<u8>,
    outgoing: Outgoing,
    reassembly: Reassembly,
    resolver: Resolver<W>,
    servers: Vec<IpAddr>,
    flows: HashMap<FourTuple, Owner<C>>,
    half_open: HalfOpenTable,
    /// Users with a UDP port, by local port.
    ports: HashMap<u16, C>,
    /// Owners of connections that had more to send than there was room for.
    stalled: HashSet<Owner<C>>,
    /// True if a socket of the tunnel accepts datagrams again.
    is_writable: bool,
    /// DNS queries over TCP, by local port.
    tcp_queries: HashMap<u16, TcpQuery>,
    sources: Sources,
    mtu: usize,
    keepalive: Option<Keepalive>,
    buffers: BufferBudget,
    resets: Resets,
    handshake_warning: Warning,
}

impl<C: Copy + Eq + Hash, W> Net<C, W> {
    /// Binds the sockets of the tunnel, for the events of `registry`. If peers have a keepalive
    /// interval, the tunnel sends keepalives; nothing else is sent yet.
    ///
    /// # Errors
    ///
    /// [`OpenError`]
    pub fn open(
        settings: Settings,
        registry: &Registry,
        tokens: [Token; 2],
    ) -> Result<Self, OpenError> {
        let Settings {
            device,
            listen_port,
            addresses,
            mtu,
            dns,
            keepalive,
            services,
            notices,
        } = settings;
        Settings::check(addresses, mtu)?;
        let tunnel = Tunnel::new(device, listen_port, services, notices, registry, tokens)?;
        let (v4, v6) = (addresses.v4.is_some(), addresses.v6.is_some());
        let sources = Sources {
            addresses,
            path: Arc::clone(tunnel.path()),
        };
        let is_routed = |server: &IpAddr| {
            addresses.matching(*server).is_some() && sources.path.routes().lookup(*server).is_some()
        };
        let servers: Vec<_> = dns.into_iter().filter(is_routed).collect();
        Ok(Self {
            now: now().boot,
            resolver: Resolver::new(servers.clone(), v4, v6, || SystemRandom.number()),
            servers,
            tunnel,
            buffer: vec![0; MAX_DATAGRAM],
            outgoing: Outgoing::new(mtu),
            reassembly: Reassembly::new(REASSEMBLY_BYTES),
            flows: HashMap::new(),
            half_open: HalfOpenTable::new(mtu),
            ports: HashMap::new(),
            stalled: HashSet::new(),
            is_writable: false,
            tcp_queries: HashMap::new(),
            sources,
            mtu,
            keepalive,
            buffers: BufferBudget::new(),
            resets: Resets::default(),
            handshake_warning: Warning::default(),
        })
    }

    /// Returns the name servers in use: those of the settings to which the tunnel routes.
    #[must_use]
    pub fn name_servers(&self) -> &[IpAddr] {
        &self.servers
    }

    /// Returns the MTU of the tunnel, in bytes.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns the UDP port of the tunnel, or `None` if the system does not report it.
    #[must_use]
    pub fn listen_port(&self) -> Option<u16> {
        self.tunnel.port()
    }

    /// Returns configuration and state of the peers.
    #[must_use]
    pub fn status(&self) -> DeviceStatus {
        self.tunnel.status()
    }

    /// Returns the number of connections, without those that were released.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.flows.len()
    }

    /// Returns the choice of source addresses.
    #[must_use]
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Returns true if the next turn must begin at once.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.tunnel.is_readable() || self.tunnel.has_handshakes()
    }

    /// Returns the time at which the next turn must begin. The users' connections have deadlines
    /// of their own ([`Stream::deadline`]).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let own = [
            self.tunnel.next_deadline(),
            self.resolver.next_deadline(),
            self.half_open.next_deadline(),
        ];
        let tcp_queries = self.tcp_queries.values().filter_map(|query| query.due);
        own.into_iter().flatten().chain(tcp_queries).min()
    }

    /// Records the readiness that an event reports. Returns false if the event is not about the
    /// tunnel's sockets.
    pub fn note(&mut self, event: &Event) -> bool {
        let noted = self.tunnel.note(event);
        self.is_writable |= noted == Some(true);
        noted.is_some()
    }

    /// Begins a turn. If the sockets accept datagrams again, returns the connections that had no
    /// room; call [`Net::pump`] for each.
    pub fn begin_turn(&mut self) -> Vec<C> {
        self.now = now().boot;
        let mut resumed = Vec::new();
        if std::mem::take(&mut self.is_writable) {
            self.tunnel.send(&mut self.outgoing);
            for owner in std::mem::take(&mut self.stalled) {
                match owner {
                    Owner::User(user) => resumed.push(user),
                    Owner::DnsQuery(port) => self.advance_query(port),
                }
            }
        }
        let half_open = self.half_open.next_deadline();
        if half_open.is_some_and(|at| at <= self.now) {
            let (buffers, outgoing) = (&mut self.buffers, &mut self.outgoing);
            self.half_open.handle_deadline(self.now, buffers, outgoing);
        }
        let due = self.tcp_queries.iter();
        let due = due.filter(|(_, one)| one.due.is_some_and(|at| at <= self.now));
        for port in due.map(|(port, _)| *port).collect::<Vec<_>>() {
            self.advance_query(port);
        }
        resumed
    }

    /// Ends a turn: sends all queued packets and does the protocol's work.
    pub fn end_turn(&mut self) {
        self.tunnel.send(&mut self.outgoing);
        self.tunnel.run_pending();
    }

    /// Sends all queued packets, shuts the tunnel down and erases its keys.
    pub fn close(&mut self) {
        self.tunnel.send(&mut self.outgoing);
        self.tunnel.close();
    }

    /// Returns the source address of packets to `remote`.
    ///
    /// # Errors
    ///
    /// [`ConnectFailure::Network`] if the tunnel does not route there.
    pub fn source_for(&self, remote: IpAddr) -> Result<IpAddr, ConnectFailure> {
        self.sources.source_for(remote)
    }

    /// Returns the reason why `address` does not answer: the host, or the tunnel's peer.
    #[must_use]
    pub fn failure_for(&self, address: IpAddr) -> ConnectFailure {
        self.tunnel.failure_for(self.now, address)
    }

    /// Refines a failed look-up: if no handshake with the servers' peers succeeds, the tunnel has
    /// failed.
    #[must_use]
    pub fn refine_failure(&self, failure: ConnectFailure) -> ConnectFailure {
        let is_silent = |server: &IpAddr| self.failure_for(*server) == ConnectFailure::Tunnel;
        match failure {
            ConnectFailure::NameServers if self.servers.iter().all(is_silent) => {
                ConnectFailure::Tunnel
            }
            failure => failure,
        }
    }

    /// Logs that a connection failed because no handshake succeeds, at most once a minute. Does
    /// nothing if a notice tells the user so. That leaves peers without an endpoint, which must
    /// begin the handshake themselves.
    pub fn warn_no_handshake(&mut self) {
        if !self.tunnel.has_reported_silence() && self.handshake_warning.is_due(self.now) {
            warn!(
                "no handshake: the tunnel's peer does not answer, and connections are refused; \
                 check Endpoint, PublicKey and PresharedKey, and that the peer knows this public \
                 key"
            );
        }
    }

    /// Begins a connection.
    ///
    /// # Errors
    ///
    /// [`ConnectFailure::Network`] without a route, [`ConnectFailure::Busy`] without a free port,
    /// [`ConnectFailure::Refused`] if no host can have the address.
    pub fn connect(&mut self, remote: SocketAddr, owner: C) -> Result<Stream, ConnectFailure> {
        self.connect_for(remote, Owner::User(owner))
    }

    fn connect_for(
        &mut self,
        remote: SocketAddr,
        owner: Owner<C>,
    ) -> Result<Stream, ConnectFailure> {
        let local = self.source_for(remote.ip())?;
        let four_tuple = |port| FourTuple {
            local: SocketAddr::new(local, port),
            remote,
        };
        let mut ports = std::iter::repeat_with(random_port).take(PORT_TRIES);
        let free = ports.find(|port| !self.flows.contains_key(&four_tuple(*port)));
        let four_tuple = four_tuple(free.ok_or(ConnectFailure::Busy)?);
        let windows = match owner {
            Owner::User(_) => self.buffers.allot(),
            // A response has at most 64 KiB.
            Owner::DnsQuery(_) => BufferBudget::least(),
        };
        let stream = Stream::connect(self.now, four_tuple, self.mtu, windows, seed());
        let Some(mut stream) = stream else {
            self.buffers.release(windows);
            return Err(ConnectFailure::Refused);
        };
        stream.set_keepalive(self.keepalive);
        self.flows.insert(four_tuple, owner);
        Ok(stream)
    }

    /// Answers a stray SYN. A half-open connection takes no buffers. There are at most 8192; one more
    /// replaces the oldest. If the other side completes the handshake within 7 s,
    /// [`Arrival::Opened`] follows.
    pub fn answer_syn(&mut self, four_tuple: FourTuple, packet: &[u8]) {
        if self.make_room() {
            let (buffers, outgoing) = (&mut self.buffers, &mut self.outgoing);
            let syn = (four_tuple, packet);
            self.half_open
                .answer_syn(self.now, syn, seed(), buffers, outgoing);
        }
    }

    /// Returns the connection that the last segment of a handshake has opened. `None` if the segment
    /// is invalid.
    pub fn accept(&mut self, four_tuple: FourTuple, owner: C, packet: &[u8]) -> Option<Stream> {
        let half_open = self.half_open.take(&four_tuple, &mut self.buffers)?;
        let opened = half_open.open(four_tuple, self.mtu).and_then(|mut stream| {
            stream.handle_packet(self.now, packet, &mut self.outgoing);
            let is_open = matches!(stream.state(), State::Established | State::CloseWait);
            is_open.then_some(stream)
        });
        let Some(mut stream) = opened else {
            self.buffers.release(half_open.windows());
            return None;
        };
        stream.set_keepalive(self.keepalive);
        self.flows.insert(four_tuple, Owner::User(owner));
        Some(stream)
    }

    /// Answers a segment without a connection with a reset: at most 200 per second, and 20 of one
    /// address.
    pub fn refuse(&mut self, four_tuple: FourTuple, packet: &[u8]) {
        self.half_open.remove(&four_tuple, &mut self.buffers);
        self.resets.answer(self.now, packet, &mut self.outgoing);
    }

    /// Passes a segment to its connection.
    pub fn deliver(&mut self, stream: &mut Stream, packet: &[u8]) {
        stream.handle_packet(self.now, packet, &mut self.outgoing);
    }

    /// Sends all segments of a connection. If there is no room, notes its owner, which
    /// [`Net::begin_turn`] returns as soon as there is.
    pub fn pump(&mut self, stream: &mut Stream, owner: C) {
        self.pump_for(stream, Owner::User(owner));
    }

    fn pump_for(&mut self, stream: &mut Stream, owner: Owner<C>) {
        while !stream.send(self.now, &mut self.outgoing) {
            self.tunnel.send(&mut self.outgoing);
            if !self.outgoing.has_room() {
                self.stalled.insert(owner);
                return;
            }
        }
    }

    /// Frees a closed connection's port and memory.
    pub fn release(&mut self, stream: Stream) {
        self.flows.remove(&FourTuple {
            local: stream.local(),
            remote: stream.remote(),
        });
        self.buffers.release(stream.windows);
    }

    /// Resets a connection.
    pub fn abort(&mut self, mut stream: Stream) {
        stream.socket().abort();
        // If there is no room for the RST, the other side times out.
        stream.send(self.now, &mut self.outgoing);
        self.release(stream);
    }

    /// Ends a connection: frees it if it is closed, and otherwise resets it.
    pub fn end(&mut self, stream: Stream) {
        match stream.state() {
            State::Closed | State::TimeWait => self.release(stream),
            _ => self.abort(stream),
        }
    }

    /// Reserves a UDP port that is free: `port`, or one of this crate's choice if it is 0.
    pub fn reserve_port(&mut self, port: u16, owner: C) -> Option<u16> {
        let is_free = |port: &u16| !self.ports.contains_key(port);
        let port = match port {
            0 => {
                let mut ports = std::iter::repeat_with(random_port).take(PORT_TRIES);
                ports.find(is_free)
            }
            port => Some(port).filter(is_free),
        }?;
        self.ports.insert(port, owner);
        Some(port)
    }

    /// Frees a UDP port.
    pub fn free_port(&mut self, port: u16) {
        self.ports.remove(&port);
    }

    /// Sends queued packets if the queue is full. Returns true if there is room then.
    fn make_room(&mut self) -> bool {
        if !self.outgoing.has_room() {
            self.tunnel.send(&mut self.outgoing);
        }
        self.outgoing.has_room()
    }

    /// Sends a datagram. Returns false if there is no room. Drops the datagram if the tunnel does
    /// not route there or if it exceeds the MTU.
    pub fn send_datagram(&mut self, local_port: u16, remote: SocketAddr, payload: &[u8]) -> bool {
        let Ok(local) = self.source_for(remote.ip()) else {
            return true;
        };
        let four_tuple = FourTuple {
            local: SocketAddr::new(local, local_port),
            remote,
        };
        let has_room = self.make_room();
        if has_room {
            push_udp(&mut self.outgoing, self.mtu, four_tuple, payload);
        }
        has_room
    }
}

/// Returns the longest payload of a UDP datagram to `remote`, in bytes, in a tunnel of this MTU.
#[must_use]
pub fn max_payload(mtu: usize, remote: IpAddr) -> usize {
    let ip = if remote.is_ipv4() { 20 } else { 40 };
    mtu.saturating_sub(ip + crate::packet::UDP_HEADER)
}

fn seed() -> u64 {
    u64::from(SystemRandom.number()) << 32 | u64::from(SystemRandom.number())
}

fn random_port() -> u16 {
    LOCAL_PORTS.start() | SystemRandom.number() as u16
}

mod arrivals;
mod look_ups;
#[cfg(test)]
mod tests;

//! Devices in virtual time, connected by a simulated wire.
//!
//! [`Net`] runs any number of devices with real cryptography. The clock moves only in
//! [`Net::advance_to`], which handles every deadline at exactly its nanosecond. Datagrams arrive
//! at once, unless [`Net::wire`] drops, holds or changes them. [`Net::log`] contains each
//! datagram with the time it was sent.

#![allow(dead_code, reason = "no test binary uses all of it")]
#![allow(unreachable_pub, reason = "shared by several test binaries")]

pub mod hybrid;
pub mod log;
pub mod node;
pub mod packets;
pub mod random;
pub mod raw;
pub mod snapshot;
pub mod world;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use taupe_protocol::crypto::{Provider, TAG_LEN};
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD, Kind, classify, data_header};
use taupe_protocol::time::{Instant, Now, Tai64N};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{
    Endpoint, LaneId, Lanes, LocalAddress, Outbound, Output, ReceivedBatch, Staged, Timer,
    padded_len,
};

use self::node::node;
#[allow(unused_imports, reason = "no test binary uses all of it")]
pub use self::node::{Node, address, private_key, stranger};
use self::packets::ipv4;
use self::random::Numbers;
#[allow(unused_imports, reason = "no test binary uses all of it")]
pub use self::raw::{RAW_ADDRESS, RAW_INNER, label, shake, with_raw, with_stranger};

/// Start of tests: one day of uptime, so that a subtraction that saturates at zero cannot hide an
/// error.
pub const START: Instant = Instant(86_400_000_000_000);
/// The wall clock at [`START`].
pub const WALL: Duration = Duration::from_secs(1_700_000_000);
/// The MTU for the padding of inner packets.
pub const MTU: usize = 1420;

pub const NANO: Duration = Duration::from_nanos(1);

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Runs each test with every backend of the cryptography.
#[macro_export]
macro_rules! each_backend {
    ($($(#[$attribute:meta])* fn $name:ident($crypto:ident) $body:block)*) => {$(
        $(#[$attribute])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn run($crypto: &'static taupe_protocol::crypto::Provider) $body

            #[test]
            fn default_backend() {
                run(taupe_protocol::crypto::default_provider());
            }

            #[test]
            fn portable_backend() {
                run(&taupe_protocol::crypto::PORTABLE);
            }
        }
    )*};
}

/// A datagram on the wire.
#[derive(Clone)]
pub struct Datagram {
    pub at: Instant,
    /// The node that sent it; `None` if the test made it.
    pub from: Option<usize>,
    pub source: SocketAddr,
    pub to: SocketAddr,
    /// The local address the device asked to send from.
    pub local: Option<LocalAddress>,
    pub tos: u8,
    pub bytes: Vec<u8>,
}

impl Datagram {
    pub fn kind(&self) -> Kind {
        classify(&self.bytes).expect("devices send only messages")
    }

    pub fn is_keepalive(&self) -> bool {
        self.kind() == Kind::Data && self.bytes.len() == DATA_OVERHEAD
    }
}

/// Decision of the wire on a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Pass,
    Drop,
    /// Keep the datagram for [`Net::release`].
    Hold,
}

/// Result of [`Net::send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Sent,
    Staged,
    NoEndpoint,
    NoPeer,
}

type Wire = Box<dyn FnMut(&mut Datagram) -> Fate>;

pub struct Net {
    pub crypto: &'static Provider,
    pub now: Instant,
    start: Instant,
    pub nodes: Vec<Node>,
    pub log: Vec<Datagram>,
    pub wire: Wire,
    held: VecDeque<Datagram>,
    flying: VecDeque<Datagram>,
    /// Every deadline that was handled, with its node.
    pub fired: Vec<(Instant, usize, Timer)>,
    /// True if the last single message was passed to [`DataPath::receive_one`].
    is_by_itself: bool,
    /// The lane on which nodes send.
    pub lane: LaneId,
    /// Set to deliver each message on the lane after its own.
    pub misplaces: bool,
}

impl Net {
    /// Returns `n` devices that are up and have keys, without peers.
    pub fn new(crypto: &'static Provider, n: usize) -> Self {
        Self::with_lanes(crypto, &vec![Lanes::One; n])
    }

    /// Returns devices with these numbers of lanes that are up and have keys, without peers.
    pub fn with_lanes(crypto: &'static Provider, lanes: &[Lanes]) -> Self {
        Self::started(crypto, lanes, START)
    }

    /// Returns `n` devices of machines whose boot clocks show zero, each a peer of node 0.
    pub fn just_booted(crypto: &'static Provider, n: usize) -> Self {
        let mut net = Self::started(crypto, &vec![Lanes::One; n], Instant(0));
        (1..n).for_each(|i| net.join(0, i));
        net
    }

    fn started(crypto: &'static Provider, lanes: &[Lanes], start: Instant) -> Self {
        let nodes = lanes.iter().enumerate();
        let nodes = nodes.map(|(i, lanes)| node(crypto, i, *lanes, start));
        Self {
            crypto,
            now: start,
            start,
            nodes: nodes.collect(),
            log: Vec::new(),
            wire: Box::new(|_| Fate::Pass),
            held: VecDeque::new(),
            flying: VecDeque::new(),
            fired: Vec::new(),
            is_by_itself: false,
            lane: LaneId::FIRST,
            misplaces: false,
        }
    }

    /// Returns two devices, node 0 and node 1, that are peers with each other's endpoints and
    /// have no session.
    pub fn pair(crypto: &'static Provider) -> Self {
        let mut net = Self::new(crypto, 2);
        net.join(0, 1);
        net
    }

    /// Returns a pair after a handshake that node 0 began; all at `START`.
    pub fn connected(crypto: &'static Provider) -> Self {
        let mut net = Self::pair(crypto);
        assert_eq!(net.ping(0, 1), Outcome::Staged);
        assert_eq!(net.nodes[1].delivered.len(), 1, "the first packet arrives");
        net
    }

    /// Makes two nodes peers of each other.
    pub fn join(&mut self, a: usize, b: usize) {
        for (x, y) in [(a, b), (b, a)] {
            let peer = self.peer_update(y);
            self.update(x, peer);
        }
    }

    /// Returns an update that makes node `of` a peer, with its endpoint and inner address.
    pub fn peer_update(&self, of: usize) -> PeerUpdate {
        let node = &self.nodes[of];
        let mut update = PeerUpdate::new(node.public);
        update.endpoint = Some(node.address);
        let own = IpNet::new(node.inner, 32).expect("a valid prefix");
        update.allowed_ips = vec![AllowedIpChange::Add(own)];
        update
    }

    pub fn update(&mut self, at: usize, peer: PeerUpdate) {
        let peers = vec![peer];
        self.apply(
            at,
            DeviceUpdate {
                peers,
                ..DeviceUpdate::default()
            },
        );
    }

    pub fn apply(&mut self, at: usize, update: DeviceUpdate) {
        let now = self.now_at(at);
        self.nodes[at]
            .device
            .update(now, update)
            .expect("few peers");
        self.run();
    }

    pub fn set_private_key(&mut self, at: usize, key: Option<PrivateKey>, floor: Tai64N) {
        if let Some(key) = &key {
            self.nodes[at].public = PublicKey(self.crypto.dh.public(key.expose()));
            self.nodes[at].private = key.clone();
        }
        let private_key = Some(PrivateKeyUpdate {
            key,
            timestamp_floor: floor,
        });
        self.apply(
            at,
            DeviceUpdate {
                private_key,
                ..DeviceUpdate::default()
            },
        );
    }

    pub fn set_preshared_key(&mut self, at: usize, of: usize, key: [u8; 32]) {
        let mut update = PeerUpdate::new(self.nodes[of].public);
        update.preshared_key = Some(PresharedKey::new(key));
        self.update(at, update);
    }

    pub fn set_persistent_keepalive(&mut self, at: usize, of: usize, seconds: u16) {
        let mut update = PeerUpdate::new(self.nodes[of].public);
        update.persistent_keepalive = Some(seconds);
        self.update(at, update);
    }

    pub fn set_up(&mut self, at: usize) {
        let now = self.now_at(at);
        self.nodes[at].device.set_up(now);
        self.run();
    }

    pub fn set_down(&mut self, at: usize) {
        self.nodes[at].device.set_down();
        self.run();
    }

    /// Returns both clocks of a node.
    pub fn now_at(&self, at: usize) -> Now {
        Now {
            boot: self.now,
            wall: self.nodes[at].wall + self.now.since(self.start),
        }
    }

    /// Sends an inner packet of 28 bytes from one node to another.
    pub fn ping(&mut self, from: usize, to: usize) -> Outcome {
        let packet = ipv4(self.nodes[from].inner, self.nodes[to].inner, b"ping....");
        self.send(from, &packet)
    }

    /// Passes an inner packet to a node, as an engine does.
    pub fn send(&mut self, from: usize, packet: &[u8]) -> Outcome {
        self.send_batch(from, packet, 1)
    }

    /// Passes a batch of `count` equal packets to a node, as an engine does.
    pub fn send_batch(&mut self, from: usize, packet: &[u8], count: usize) -> Outcome {
        let sent = self.send_unrun(from, packet, count);
        self.run();
        sent
    }

    fn send_unrun(&mut self, from: usize, packet: &[u8], count: usize) -> Outcome {
        let now = self.now;
        let node = &mut self.nodes[from];
        let view = taupe_protocol::inner::parse(packet).expect("a valid inner packet");
        let routes = node.path.routes();
        let Some(peer) = routes.lookup(view.destination) else {
            return Outcome::NoPeer;
        };
        let mut padded = packet.to_vec();
        padded.resize(padded_len(packet.len(), MTU), 0);
        let stride = padded.len() + DATA_OVERHEAD;
        let bytes = (stride * count) as u64;
        match (node.path).reserve_on(self.lane, now, peer, count as u64, bytes) {
            Outbound::Send(mut reservation) => {
                let endpoint = reservation.endpoint();
                let mut batch = vec![0; stride * count];
                for message in batch.chunks_mut(stride) {
                    message[DATA_HEADER_LEN..stride - TAG_LEN].copy_from_slice(&padded);
                }
                assert_eq!(reservation.seal(&mut batch, stride), batch.len());
                for message in batch.chunks(stride) {
                    let source = node.address;
                    node.sent += 1;
                    self.flying.push_back(Datagram {
                        at: now,
                        from: Some(from),
                        source,
                        to: endpoint.remote,
                        local: endpoint.local,
                        tos: 0,
                        bytes: message.to_vec(),
                    });
                }
                Outcome::Sent
            }
            Outbound::Stage => {
                let staged = (0..count).map(|_| Staged {
                    packet: padded.clone(),
                    ecn: 0,
                    lane: self.lane,
                });
                node.path.stage(now, peer, staged);
                Outcome::Staged
            }
            Outbound::NoEndpoint => Outcome::NoEndpoint,
        }
    }

    /// Passes a datagram made by the test to a node.
    pub fn inject(&mut self, to: usize, source: SocketAddr, bytes: &[u8]) {
        self.inject_batch(to, source, bytes, bytes.len());
    }

    /// Passes a batch, cut every `segment` bytes, to a node.
    pub fn inject_batch(&mut self, to: usize, source: SocketAddr, batch: &[u8], segment: usize) {
        self.receive(to, source, batch, segment);
        self.run();
    }

    /// Delivers a held datagram, or one of the log again.
    pub fn deliver(&mut self, datagram: &Datagram) {
        let to = self.at(datagram.to).expect("a node has the address");
        self.inject(to, datagram.source, &datagram.bytes);
    }

    /// Passes a batch to a node without running its control loop, except for handshake messages.
    pub fn receive(&mut self, to: usize, source: SocketAddr, batch: &[u8], segment: usize) {
        let now = self.now_at(to);
        let node = &mut self.nodes[to];
        let from = Endpoint {
            remote: source,
            local: Some(LocalAddress {
                address: node.address.ip(),
                interface: 1,
            }),
        };
        let mut batch = batch.to_vec();
        // Single messages alternate between the two receive functions, which must have the same
        // effect.
        let steering = *node.path.steering();
        let is_single = steering.lanes() == Lanes::One && segment >= batch.len();
        if is_single && matches!(classify(&batch), Ok(Kind::Data)) {
            self.is_by_itself = !self.is_by_itself;
            if self.is_by_itself {
                let (header, data) = batch.split_at_mut(DATA_HEADER_LEN);
                let header = data_header(header).expect("a header");
                let opened = node.path.receive_one(now.boot, from, header, data);
                let packet = opened.ok().flatten().map(|length| data[..length].to_vec());
                node.delivered.extend(packet);
                return;
            }
        }
        let mut sorted = ReceivedBatch::default();
        let header = data_header(&batch).unwrap_or_default();
        let mut lane = steering.lane_of(header.0, header.1).number();
        if self.misplaces {
            lane = (lane + 1) % steering.lanes().count();
        }
        let lane = LaneId::new(lane).expect("below 16");
        node.path
            .receive_on(lane, now.boot, from, &mut batch, segment, &mut sorted);
        for range in sorted.inner {
            node.delivered.push(batch[range].to_vec());
        }
        for range in sorted.handshakes {
            node.device
                .handle_message(now, from, &batch[range], node.backlog);
        }
    }

    /// Runs all devices until nothing more happens at the current time.
    pub fn run(&mut self) {
        loop {
            for i in 0..self.nodes.len() {
                self.collect(i);
            }
            let Some(mut datagram) = self.flying.pop_front() else {
                return;
            };
            let before = datagram.clone();
            let fate = (self.wire)(&mut datagram);
            self.log.push(before);
            match fate {
                Fate::Pass => {
                    if let Some(to) = self.at(datagram.to) {
                        let length = datagram.bytes.len();
                        self.receive(to, datagram.source, &datagram.bytes, length);
                    }
                }
                Fate::Hold => self.held.push_back(datagram),
                Fate::Drop => {}
            }
        }
    }

    fn collect(&mut self, i: usize) {
        let now = self.now_at(i);
        let node = &mut self.nodes[i];
        if node.device.has_pending_work() {
            node.device.handle_pending_work(now);
        }
        while let Some(output) = node.device.poll_output() {
            match output {
                Output::Transmit {
                    endpoint,
                    tos,
                    datagram,
                } => {
                    node.sent += 1;
                    self.flying.push_back(Datagram {
                        at: self.now,
                        from: Some(i),
                        source: node.address,
                        to: endpoint.remote,
                        local: endpoint.local,
                        tos,
                        bytes: datagram,
                    });
                }
                Output::Resolve { public_key, name } => {
                    node.asked.push((self.now, public_key, name));
                }
                Output::PinPostQuantum { peer, pinned, .. } => node.pins.push((peer, pinned)),
                Output::Notice(notice) => node.notices.push((self.now, notice)),
                Output::ReserveTimestamps { public_key, up_to } => {
                    // A replaced key returns its unused reservation: only the current key's are
                    // stored.
                    if public_key == node.public {
                        node.reserved.push((up_to, node.sent));
                    }
                }
            }
        }
    }

    fn at(&self, address: SocketAddr) -> Option<usize> {
        self.nodes.iter().position(|node| node.address == address)
    }

    /// Moves the clock to `to`, handling every deadline at its time, including those at `to`.
    pub fn advance_to(&mut self, to: Instant) {
        assert!(to >= self.now, "time does not go back");
        self.run();
        let mut calls = 0;
        while let Some((at, i, reason)) = self.next_deadline()
            && at <= to
        {
            self.now = self.now.max(at);
            let now = self.now_at(i);
            self.fired.push((self.now, i, reason));
            self.nodes[i].device.handle_deadline(now);
            self.run();
            calls += 1;
            assert!(calls < 100_000, "deadlines without end at {at:?}");
        }
        self.now = to;
    }

    /// Moves the clock to `offset` after `START`.
    pub fn advance_to_offset(&mut self, offset: Duration) {
        self.advance_to(START + offset);
    }

    pub fn advance(&mut self, by: Duration) {
        self.advance_to(self.now + by);
    }

    pub fn next_deadline(&self) -> Option<(Instant, usize, Timer)> {
        let deadline = |(i, node): (usize, &Node)| {
            let (at, reason) = node.device.next_deadline()?;
            Some((at, i, reason))
        };
        self.nodes.iter().enumerate().filter_map(deadline).min()
    }

    /// Drops all datagrams from now on.
    pub fn cut(&mut self) {
        self.wire = Box::new(|_| Fate::Drop);
    }

    /// Drops all datagrams of one node.
    pub fn cut_from(&mut self, node: usize) {
        self.wire = Box::new(move |d| {
            if d.from == Some(node) {
                Fate::Drop
            } else {
                Fate::Pass
            }
        });
    }

    /// Drops all messages of one kind.
    pub fn cut_kind(&mut self, kind: Kind) {
        self.wire = Box::new(move |d| {
            if d.kind() == kind {
                Fate::Drop
            } else {
                Fate::Pass
            }
        });
    }

    /// Holds all datagrams from now on.
    pub fn hold(&mut self) {
        self.wire = Box::new(|_| Fate::Hold);
    }

    /// Lets all datagrams pass from now on. Held datagrams stay held.
    pub fn mend(&mut self) {
        self.wire = Box::new(|_| Fate::Pass);
    }

    /// Removes and returns the held datagrams, in order.
    pub fn take_held(&mut self) -> Vec<Datagram> {
        self.held.drain(..).collect()
    }

    /// Delivers the held datagrams, in order.
    pub fn release(&mut self) {
        for datagram in self.take_held() {
            self.deliver(&datagram);
        }
    }

    /// Returns the age of the session with which `node` sends to `of`.
    pub fn session_age(&mut self, node: usize, of: usize) -> Option<Duration> {
        let key = self.nodes[of].public;
        let session = self.nodes[node].current(&key)?;
        Some(self.now.since(session.born()))
    }
}

pub fn set_numbers(net: &Net, node: usize, numbers: Numbers) {
    net.nodes[node].numbers.set(numbers);
}

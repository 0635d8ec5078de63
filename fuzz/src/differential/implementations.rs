//! Taupe and boringtun, with the same private key and the same two peers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;
use taupe_protocol::crypto::default_provider;
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::key::PrivateKey;
use taupe_protocol::message::{Kind, classify};
use taupe_protocol::time::Instant;
use taupe_protocol::update::{AllowedIpChange, PeerUpdate};

use crate::common::packets::{ipv4, ipv6};
use crate::common::raw::{Raw, RawSession};
use crate::common::snapshot::counts;
use crate::common::{Net, Outcome, RAW_INNER, label, millis, private_key, with_stranger};
use crate::input::Input;

/// Second inner address of the peer that sends data.
const RAW_INNER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9));
/// Inner address of the peer that answers initiations.
const OTHER_INNER: [u8; 4] = [10, 0, 0, 10];

/// Age at which a session is replaced, well below that at which Taupe refuses it.
const MAX_AGE: Duration = Duration::from_secs(100);
/// Greatest counter with which a session is used for another run.
const MAX_COUNTER: u64 = 1 << 60;

/// More than any message and any packet.
const BUFFER: usize = 1 << 16;

/// A value for each implementation.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Both<T> {
    pub(super) taupe: T,
    pub(super) boringtun: T,
}

impl<T> Both<T> {
    pub(super) fn map<U>(&self, make: impl Fn(&T) -> U) -> Both<U> {
        Both {
            taupe: make(&self.taupe),
            boringtun: make(&self.boringtun),
        }
    }

    pub(super) fn each(&mut self, change: impl Fn(&mut T)) {
        change(&mut self.taupe);
        change(&mut self.boringtun);
    }
}

impl<T: Clone> Both<T> {
    pub(super) fn same(value: T) -> Self {
        Self {
            taupe: value.clone(),
            boringtun: value,
        }
    }
}

impl Both<Vec<u8>> {
    /// Makes the same change to both messages.
    pub(super) fn mutated(&self, input: &mut Input<'_>) -> Self {
        let mut messages = self.clone();
        input.clone().mutate(&mut messages.taupe);
        input.mutate(&mut messages.boringtun);
        messages
    }
}

impl Both<Verdict> {
    /// Returns true if both have done the same. Their own messages may differ.
    pub(super) fn are_alike(&self) -> bool {
        match (&self.taupe, &self.boringtun) {
            (Verdict::Answered(_), Verdict::Answered(_)) | (Verdict::Sent(_), Verdict::Sent(_)) => {
                true
            }
            (taupe, boringtun) => taupe == boringtun,
        }
    }
}

/// Effect of a datagram.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verdict {
    Refused,
    /// It was accepted, and nothing follows: a keepalive or a cookie.
    Silent,
    /// An inner packet was delivered.
    Packet(Vec<u8>),
    /// An initiation was answered with this response.
    Answered(Vec<u8>),
    /// A response has completed a handshake, and this data was sent.
    Sent(Vec<u8>),
}

/// A session with each implementation.
pub(super) type Sessions = Both<RawSession>;

impl Sessions {
    pub(super) fn seal(&self, counter: u64, plaintext: &[u8]) -> Both<Vec<u8>> {
        self.map(|session| session.seal(counter, plaintext))
    }
}

/// Both implementations. Node 0 of the network is Taupe's.
pub(super) struct Implementations {
    net: Net,
    /// The peer that begins handshakes and sends data.
    pub(super) raw: Raw,
    /// The peer that answers initiations.
    pub(super) other: Raw,
    limiter: Arc<RateLimiter>,
    /// boringtun's tunnel with each peer.
    tunnel: Tunn,
    tunnel_to_other: Tunn,
    /// Number of the last timestamp.
    pub(super) label: u32,
    /// The session that the last run has left, and its greatest counter.
    kept: Option<(Sessions, u64)>,
    /// Time of the last handshake.
    born: Instant,
    buffer: Vec<u8>,
}

impl Implementations {
    pub(super) fn new() -> Self {
        let (mut net, raw) = with_stranger(default_provider());
        let mut update = PeerUpdate::new(raw.keys.public);
        update.allowed_ips = vec![own(RAW_INNER_V6)];
        net.update(0, update);
        let address = SocketAddr::from(([198, 51, 100, 10], 4501));
        let other = Raw::new(raw.crypto, private_key(55), net.nodes[0].public, address);
        let public = x25519::PublicKey::from(net.nodes[0].public.0);
        let limiter = Arc::new(RateLimiter::new(&public, u64::MAX));
        let private = net.nodes[0].private.clone();
        Self {
            tunnel: tunnel(&private, &raw, &limiter),
            tunnel_to_other: tunnel(&private, &other, &limiter),
            net,
            raw,
            other,
            limiter,
            label: 1,
            kept: None,
            born: Instant(0),
            buffer: vec![0; BUFFER],
        }
    }

    /// Returns a session that both have confirmed, and its greatest counter. Makes one if the last
    /// run has left none that can be used.
    pub(super) fn session(&mut self) -> (Sessions, u64) {
        self.forget_past();
        let now = self.net.now;
        match self.kept.take() {
            Some((sessions, greatest)) if greatest < MAX_COUNTER && self.born + MAX_AGE > now => {
                (sessions, greatest)
            }
            _ => (self.shake(), 0),
        }
    }

    /// Keeps a session for the next run.
    pub(super) fn keep_session(&mut self, sessions: Sessions, greatest: u64) {
        self.kept = Some((sessions, greatest));
    }

    fn shake(&mut self) -> Sessions {
        self.pass_flood_gap();
        self.label += 1;
        let begun = self.raw.begin(7, label(self.label));
        let verdicts = self.deliver(self.raw.address, &Both::same(begun.message.clone()));
        verdicts.map(|verdict| {
            let Verdict::Answered(response) = verdict else {
                panic!("a handshake: {verdicts:02x?}");
            };
            self.raw.finish(&begun, response).expect("a valid response")
        })
    }

    /// Moves Taupe's clock on, so that it accepts another initiation. boringtun has the system's clock.
    pub(super) fn pass_flood_gap(&mut self) {
        self.net.advance(millis(20));
    }

    /// Returns initiations of both to the other peer, whose earlier handshakes are forgotten.
    pub(super) fn initiate(&mut self) -> Both<Vec<u8>> {
        let mut removal = PeerUpdate::new(self.other.keys.public);
        removal.remove = true;
        self.net.update(0, removal);
        let mut addition = PeerUpdate::new(self.other.keys.public);
        addition.endpoint = Some(self.other.address);
        addition.allowed_ips = vec![own(OTHER_INNER.into())];
        self.net.update(0, addition);
        let packet = ipv4(self.net.nodes[0].inner, OTHER_INNER.into(), b"waits");
        assert_eq!(self.net.send(0, &packet), Outcome::Staged);
        let taupe = self.net.last(0, Kind::Initiation).bytes;

        let private = &self.net.nodes[0].private;
        self.tunnel_to_other = tunnel(private, &self.other, &self.limiter);
        let made = self
            .tunnel_to_other
            .format_handshake_initiation(&mut self.buffer, true);
        let TunnResult::WriteToNetwork(boringtun) = made else {
            panic!("no initiation of boringtun: {made:?}");
        };
        Both {
            taupe,
            boringtun: boringtun.to_vec(),
        }
    }

    /// Returns an IPv4 or IPv6 packet of the first peer with a payload of this length.
    pub(super) fn packet(&self, is_v6: bool, length: usize) -> Vec<u8> {
        let payload = vec![0x5a; length];
        match is_v6 {
            true => ipv6(RAW_INNER_V6, RAW_INNER_V6, &payload),
            false => ipv4(RAW_INNER, self.net.nodes[0].inner, &payload),
        }
    }

    /// Delivers a datagram to both.
    pub(super) fn deliver(&mut self, from: SocketAddr, messages: &Both<Vec<u8>>) -> Both<Verdict> {
        Both {
            taupe: self.deliver_to_taupe(from, &messages.taupe),
            boringtun: self.deliver_to_boringtun(from, &messages.boringtun),
        }
    }

    pub(super) fn deliver_to_taupe(&mut self, from: SocketAddr, message: &[u8]) -> Verdict {
        if message.is_empty() {
            return Verdict::Refused;
        }
        let refused: u64 = counts(&self.net.nodes[0]).iter().sum();
        let (mark, delivered) = (self.net.log.len(), self.net.nodes[0].delivered.len());
        self.net.inject(0, from, message);
        let node = &self.net.nodes[0];
        if let Some(packet) = node.delivered.get(delivered) {
            return Verdict::Packet(packet.clone());
        }
        match self.net.log.get(mark..) {
            Some([sent]) => {
                let verdict = of_message(&sent.bytes);
                if let Verdict::Answered(_) = verdict {
                    self.born = self.net.now;
                }
                verdict
            }
            Some([]) if counts(node).iter().sum::<u64>() == refused => Verdict::Silent,
            Some([]) => Verdict::Refused,
            more => panic!("more than one answer: {:02x?}", more.map(<[_]>::len)),
        }
    }

    fn deliver_to_boringtun(&mut self, from: SocketAddr, message: &[u8]) -> Verdict {
        if message.is_empty() {
            return Verdict::Refused;
        }
        let tunnel = match from == self.other.address {
            true => &mut self.tunnel_to_other,
            false => &mut self.tunnel,
        };
        let is_allowed = |source: IpAddr| [RAW_INNER, RAW_INNER_V6].contains(&source);
        match tunnel.decapsulate(Some(from.ip()), message, &mut self.buffer) {
            TunnResult::Done => Verdict::Silent,
            TunnResult::WriteToNetwork(message) => of_message(message),
            TunnResult::WriteToTunnelV4(packet, source) if is_allowed(source.into()) => {
                Verdict::Packet(packet.to_vec())
            }
            TunnResult::WriteToTunnelV6(packet, source) if is_allowed(source.into()) => {
                Verdict::Packet(packet.to_vec())
            }
            TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..)
            | TunnResult::Err(_) => Verdict::Refused,
        }
    }

    /// Empties the records of earlier runs, which would grow without end.
    fn forget_past(&mut self) {
        self.net.log.clear();
        self.net.fired.clear();
        let node = &mut self.net.nodes[0];
        node.delivered.clear();
        node.reserved.clear();
        node.notices.clear();
    }
}

fn tunnel(private: &PrivateKey, peer: &Raw, limiter: &Arc<RateLimiter>) -> Tunn {
    let private = x25519::StaticSecret::from(*private.expose());
    let public = x25519::PublicKey::from(peer.keys.public.0);
    let limiter = Some(Arc::clone(limiter));
    Tunn::new(private, public, None, None, 1, limiter)
}

fn own(address: IpAddr) -> AllowedIpChange {
    AllowedIpChange::Add(IpNet::from(address))
}

/// Returns the verdict of an implementation that has sent this message.
fn of_message(message: &[u8]) -> Verdict {
    match classify(message) {
        Ok(Kind::Response) => Verdict::Answered(message.to_vec()),
        Ok(Kind::Data) => Verdict::Sent(message.to_vec()),
        other => panic!("{other:?} was sent"),
    }
}

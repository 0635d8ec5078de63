//! A simulated host: its clocks, its address, its configuration, its label
//! file, and the device while it runs.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use taupe_crypto::Provider;
use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::limits::UNDER_LOAD_BACKLOG;
use taupe_protocol::time::{Instant, Now, Tai64N};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, Prefix, PrivateKeyUpdate};
use taupe_protocol::{
    DataPath, Device, DropReason, Endpoint, LocalAddress, PeerSnapshot, Reason, ReceivedBatch,
};

use crate::ledger::inner_addresses;
use crate::plan::{MILLISECOND, Nanos};
use crate::post_quantum::HybridConf;
use crate::pulse::Pulse;
use crate::random::Random;
use crate::sessions::Sessions;
use crate::violation::{Invariant, Violation};

/// Packets that wait for one peer, at most, as in the Linux kernel.
const MAX_STAGED: usize = 128;
/// Hybrid handshakes that a peer has begun and not finished, at most (docs/post-quantum.md).
const MAX_HALVES: usize = 4;
/// More than a device reserves labels ahead.
const LABELS_AHEAD: Duration = Duration::from_secs(70);
/// The wall clock of a host that is set right, at the start: 2026-01-01.
const WALL_START: i64 = 1_767_225_600_000_000_000;
/// The boot clock of a host at its first start.
const BOOT_START: i64 = 1_000_000_000;

/// What a host knows of another.
#[derive(Clone, Copy)]
pub(crate) struct Conf {
    /// The other's key, as far as this host has been told.
    pub(crate) key: PublicKey,
    /// Which preshared key; 0 is none.
    pub(crate) preshared: u64,
    /// Persistent keepalive in seconds.
    pub(crate) keepalive: u16,
    /// The configured endpoint.
    pub(crate) endpoint: Option<SocketAddr>,
    /// Whether the peer is configured at the moment.
    pub(crate) present: bool,
    /// Whether the other's inner addresses are its own.
    pub(crate) allowed: bool,
    /// Counts how often the peer has been added.
    pub(crate) generation: u64,
    /// Hybrid handshakes with it, if any are configured.
    pub(crate) hybrid: Option<HybridConf>,
}

/// One host.
pub(crate) struct Host {
    /// Its number.
    pub(crate) index: usize,
    /// Where it is reached.
    pub(crate) address: SocketAddr,
    /// Its public key.
    pub(crate) public: PublicKey,
    /// What it knows of each other host.
    pub(crate) peers: Vec<Option<Conf>>,
    /// The device, while the host runs.
    pub(crate) node: Option<Node>,
    /// Asleep since.
    pub(crate) asleep: Option<Nanos>,
    /// Under load until.
    pub(crate) loaded_until: Nanos,
    /// When something last kept it from exchanging packets.
    pub(crate) disturbed: Nanos,
    /// How often a device has been made here.
    pub(crate) incarnation: u64,
    /// Which seed of ML-KEM keys it has.
    pub(crate) seed_number: u64,
    /// Whether it has one at all.
    pub(crate) has_seed: bool,
    /// Peers, by their key, with which `prefer` has become `require`: survives crashes, as
    /// labels do.
    pub(crate) latches: BTreeSet<PublicKey>,
    pub(crate) crypto: &'static Provider,
    pub(crate) seed: u64,
    key_number: u64,
    boot_zero: i64,
    wall_offset: i64,
    /// Labels up to these have been reserved, by public key: survives crashes.
    labels: BTreeMap<PublicKey, Tai64N>,
    /// No label above this wall time can have been sent with the present key.
    label_bound: Duration,
    /// After a crash without label file: peers may refuse labels up to here.
    locked_until: Duration,
}

/// A running device with everything that watches it.
pub(crate) struct Node {
    /// The control half.
    pub(crate) device: Device,
    /// The half that moves packets.
    pub(crate) path: Arc<DataPath>,
    /// Its sessions.
    pub(crate) sessions: Sessions,
    /// What it owes each host.
    pub(crate) pulses: Vec<Pulse>,
    /// Staged packets.
    pub(crate) staged: Staged,
    /// The next deadline on the boot clock, after every call.
    pub(crate) deadline: Option<(Instant, Reason)>,
    /// From where each host was last heard.
    pub(crate) sources: Vec<Option<SocketAddr>>,
    /// Its wake-ups.
    pub(crate) idle: Idle,
    /// Buffers that are used again.
    pub(crate) sorted: ReceivedBatch,
    woken: Arc<AtomicBool>,
}

/// What is known of staged packets from outside.
#[derive(Default)]
pub(crate) struct Staged {
    /// Those that must still be waiting.
    waiting: i64,
    /// Drops that have been accounted for.
    dropped: u64,
}

impl Staged {
    /// Packets have been handed over to wait.
    pub(crate) fn entered(&mut self, count: u64) {
        self.waiting += count as i64;
    }

    /// A packet has been sent that had waited.
    pub(crate) fn flushed(&mut self) {
        self.waiting -= 1;
    }

    /// Compares with what does wait, and with what has been dropped in all.
    /// Keepalives wait too, so that more may be there than is known of.
    ///
    /// # Errors
    /// If packets are missing.
    pub(crate) fn check(&mut self, there: usize, dropped: u64) -> Result<(), Violation> {
        self.waiting -= (dropped - self.dropped) as i64;
        self.dropped = dropped;
        if self.waiting > there as i64 {
            return Err(Violation::new(
                Invariant::Staged,
                format!(
                    "{there} packets are staged, {} have to be: the rest were neither sent nor counted",
                    self.waiting
                ),
            ));
        }
        if there == 0 {
            self.waiting = 0;
        }
        Ok(())
    }
}

/// Counts wake-ups without effect since something last happened.
#[derive(Default)]
pub(crate) struct Idle(usize);

impl Idle {
    /// Something has happened.
    pub(crate) fn used(&mut self) {
        self.0 = 0;
    }

    /// A deadline has been handled. Each of `timers` may have been stopped after
    /// it was armed, and then wakes once for nothing.
    ///
    /// # Errors
    /// If it has happened more often in a row.
    pub(crate) fn woken(&mut self, effect: bool, timers: usize) -> Result<(), Violation> {
        self.0 = if effect { 0 } else { self.0 + 1 };
        if self.0 > timers {
            return Err(Violation::new(
                Invariant::Idle,
                format!("has woken {} times in a row for nothing", self.0),
            ));
        }
        Ok(())
    }
}

/// Everything of a device that a message may change.
#[derive(PartialEq, Debug)]
pub(crate) struct Digest {
    peers: Vec<Option<PeerSnapshot>>,
    sessions: usize,
    halves: usize,
    pending: usize,
    deadline: Option<(Instant, Reason)>,
    attention: bool,
}

impl Digest {
    /// What of it a hybrid initiation may not change, before its session has been used.
    fn but_for_provisional(self) -> Self {
        let peers = self.peers.into_iter();
        Self {
            peers: peers
                .map(|peer| peer.map(PeerSnapshot::but_for_provisional))
                .collect(),
            sessions: 0,
            halves: 0,
            deadline: None,
            ..self
        }
    }
}

impl Host {
    /// A host that has not booted.
    #[must_use]
    pub(crate) fn new(seed: u64, index: usize, hosts: usize, crypto: &'static Provider) -> Self {
        let mut random = Random::new(seed, 0x1000 + index as u64);
        let address = new_address(index, &mut random);
        let mut host = Self {
            index,
            address,
            public: PublicKey([0; 32]),
            peers: vec![None; hosts],
            node: None,
            asleep: None,
            loaded_until: 0,
            disturbed: 0,
            incarnation: 0,
            seed_number: 0,
            has_seed: false,
            latches: BTreeSet::new(),
            crypto,
            seed,
            key_number: 0,
            boot_zero: -BOOT_START - random.below(1 << 50) as i64,
            wall_offset: WALL_START + random.between(0, 20_000 * MILLISECOND) as i64,
            labels: BTreeMap::new(),
            label_bound: Duration::ZERO,
            locked_until: Duration::ZERO,
        };
        host.public = host.public_of(0, crypto);
        host
    }

    /// The boot clock.
    #[must_use]
    pub(crate) fn boot(&self, now: Nanos) -> Instant {
        Instant((now as i64 - self.boot_zero) as u64)
    }

    /// Both clocks.
    #[must_use]
    pub(crate) fn clocks(&self, now: Nanos) -> Now {
        let wall = (now as i64 + self.wall_offset).max(0) as u64;
        Now {
            boot: self.boot(now),
            wall: Duration::from_nanos(wall),
        }
    }

    /// When the device must be called, in the time of the world.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        if self.asleep.is_some() {
            return None;
        }
        let (at, _) = self.node.as_ref()?.deadline?;
        Some((at.0 as i64 + self.boot_zero).max(0) as Nanos)
    }

    /// Whether the device runs and is awake.
    #[must_use]
    pub(crate) fn runs(&self) -> bool {
        self.node.is_some() && self.asleep.is_none()
    }

    /// How many handshake messages wait.
    #[must_use]
    pub(crate) fn backlog(&self, now: Nanos) -> usize {
        if now < self.loaded_until {
            UNDER_LOAD_BACKLOG
        } else {
            0
        }
    }

    /// Whether its initiations may be refused because nothing remembers the
    /// labels it has sent.
    #[must_use]
    pub(crate) fn locked_out(&self, now: Nanos) -> bool {
        self.clocks(now).wall <= self.locked_until
    }

    /// Moves the wall clock.
    pub(crate) fn jump(&mut self, by: i64) {
        // Two hundred years would not fit the clock; nobody jumps that far.
        self.wall_offset = (self.wall_offset + by).clamp(0, 4 * WALL_START);
    }

    /// An initiation leaves: its label is at most this.
    pub(crate) fn label_used(&mut self, now: Nanos) {
        let next = self.label_bound + Duration::from_millis(50);
        self.label_bound = self.clocks(now).wall.max(next);
    }

    /// Keeps what a device wants remembered: more than before, or less when it
    /// gives back what it has not used.
    pub(crate) fn reserve_labels(&mut self, key: PublicKey, up_to: Tai64N) {
        self.labels.insert(key, up_to);
    }

    /// Makes a device, as after a start of the program, with what is configured.
    pub(crate) fn start(&mut self, crypto: &'static Provider, now: Nanos, reboot: bool) {
        if reboot {
            self.boot_zero = now as i64 - BOOT_START;
        }
        self.incarnation += 1;
        let stream = 0x10_0000 + (self.index as u64) * 0x1000 + self.incarnation;
        let woken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&woken);
        let device = Device::new(
            crypto,
            Box::new(Random::new(self.seed, stream)),
            Arc::new(move || flag.store(true, Ordering::Relaxed)),
        );
        let mut node = Node {
            path: Arc::clone(device.data_path()),
            device,
            sessions: Sessions::default(),
            pulses: vec![Pulse::default(); self.peers.len()],
            staged: Staged::default(),
            deadline: None,
            sources: vec![None; self.peers.len()],
            idle: Idle::default(),
            sorted: ReceivedBatch::default(),
            woken,
        };
        let clocks = self.clocks(now);
        let mut update = DeviceUpdate {
            private_key: Some(self.key_update()),
            pq_private_key: Some(self.pq_private()),
            ..Default::default()
        };
        update.peers = (0..self.peers.len())
            .filter_map(|other| self.peer_update(other))
            .collect();
        // Fewer than 2^20 peers: it cannot be refused.
        let _ = node.device.update(clocks, update);
        node.device.set_up(clocks);
        self.node = Some(node);
        for other in 0..self.peers.len() {
            self.reset_pulse(other, now);
        }
    }

    /// The device ends without a word. `keep_labels` is whether the label file
    /// is there next time.
    pub(crate) fn crash(&mut self, keep_labels: bool) -> Option<Sessions> {
        if !keep_labels {
            self.labels.clear();
            self.latches.clear();
            self.locked_until = self.locked_until.max(self.label_bound);
        }
        // What was reserved counts as used next time.
        self.label_bound += LABELS_AHEAD;
        self.asleep = None;
        self.node.take().map(|node| node.sessions)
    }

    /// Takes another private key; the label file knows nothing of it.
    pub(crate) fn change_key(&mut self, crypto: &Provider) {
        self.key_number += 1;
        self.public = self.public_of(self.key_number, crypto);
        self.label_bound = Duration::ZERO;
        self.locked_until = Duration::ZERO;
    }

    /// The update that sets the present private key.
    #[must_use]
    pub(crate) fn key_update(&self) -> PrivateKeyUpdate {
        PrivateKeyUpdate {
            key: self.private(),
            timestamp_floor: self
                .labels
                .get(&self.public)
                .copied()
                .unwrap_or(Tai64N::ZERO),
        }
    }

    /// The update that configures another host in full.
    #[must_use]
    pub(crate) fn peer_update(&self, other: usize) -> Option<PeerUpdate> {
        let conf = self
            .peers
            .get(other)?
            .as_ref()
            .filter(|conf| conf.present)?;
        let mut update = PeerUpdate::new(conf.key);
        update.preshared_key = Some(self.preshared(other, conf.preshared));
        update.persistent_keepalive = Some(conf.keepalive);
        update.endpoint = conf.endpoint;
        self.hybrid_update(other, &mut update);
        update.replace_allowed_ips = true;
        if conf.allowed {
            update.allowed_ips = prefixes(other);
        }
        Some(update)
    }

    /// The preshared key of a pair; both sides compute the same.
    #[must_use]
    pub(crate) fn preshared(&self, other: usize, number: u64) -> PresharedKey {
        if number == 0 {
            return PresharedKey::NONE;
        }
        let (low, high) = (self.index.min(other) as u64, self.index.max(other) as u64);
        let stream = 0x20_0000 + (low << 8 | high) * 0x1000 + number;
        PresharedKey::new(Random::new(self.seed, stream).bytes())
    }

    /// Where the device sends what is for `other`.
    pub(crate) fn endpoint_of(&mut self, other: usize) -> Option<SocketAddr> {
        let key = self.peers[other].as_ref().filter(|conf| conf.present)?.key;
        let peer = self.node.as_mut()?.device.peer(&key)?;
        peer.endpoint().map(|endpoint| endpoint.remote)
    }

    /// Nothing is owed to `other` from before.
    pub(crate) fn reset_pulse(&mut self, other: usize, now: Nanos) {
        let endpoint = self.endpoint_of(other).is_some();
        let boot = self.boot(now).0;
        let keepalive = self.peers[other]
            .filter(|c| c.present)
            .map_or(0, |c| c.keepalive);
        if let Some(node) = &mut self.node {
            let keepalive = if node.device.is_up() {
                u64::from(keepalive)
            } else {
                0
            };
            node.pulses[other].reset(boot, keepalive * 1_000_000_000, endpoint);
        }
    }

    /// The other host whose key is `key` here.
    #[must_use]
    pub(crate) fn peer_of(&self, key: &PublicKey) -> Option<usize> {
        self.peers
            .iter()
            .position(|conf| conf.is_some_and(|conf| conf.present && conf.key == *key))
    }

    /// What an unauthenticated datagram may not change.
    pub(crate) fn digest(&mut self) -> Option<Digest> {
        let keys = self.keys();
        self.digest_of(&keys)
    }

    /// The same, of one peer: what a part of a hybrid initiation in its name may not change.
    pub(crate) fn provisional_digest(&mut self, other: usize) -> Option<Digest> {
        let conf = self.peers[other].filter(|conf| conf.present)?;
        self.digest_of(&[conf.key]).map(Digest::but_for_provisional)
    }

    fn digest_of(&mut self, keys: &[PublicKey]) -> Option<Digest> {
        let node = self.node.as_mut()?;
        Some(Digest {
            peers: keys.iter().map(|key| node.device.snapshot(key)).collect(),
            sessions: node.sessions.alive(),
            halves: node.device.half_handshakes(),
            pending: node.device.pending_handshakes(),
            deadline: node.device.next_deadline(),
            attention: node.device.has_pending_work(),
        })
    }

    /// Checks staged packets and the bounds of memory.
    ///
    /// # Errors
    /// If packets are missing or too many are kept.
    pub(crate) fn check_memory(&mut self) -> Result<(), Violation> {
        let keys = self.keys();
        let Some(node) = self.node.as_mut() else {
            return Ok(());
        };
        let mut staged = 0;
        for snapshot in keys.iter().filter_map(|key| node.device.snapshot(key)) {
            if snapshot.staged > MAX_STAGED {
                return Err(Violation::new(
                    Invariant::Memory,
                    format!("{} packets are staged for one peer", snapshot.staged),
                ));
            }
            staged += snapshot.staged;
        }
        let pending = node.device.pending_handshakes();
        if pending > keys.len() {
            return Err(Violation::new(
                Invariant::Memory,
                format!("{pending} handshakes wait for {} peers", keys.len()),
            ));
        }
        let halves = node.device.half_handshakes();
        if halves > MAX_HALVES * keys.len() {
            return Err(Violation::new(
                Invariant::Memory,
                format!("{halves} handshakes begun by {} peers", keys.len()),
            ));
        }
        let counters = node.path.counters();
        let dropped =
            counters.count(DropReason::StagedOverflow) + counters.count(DropReason::StagedPurged);
        node.staged.check(staged, dropped)
    }

    fn keys(&self) -> Vec<PublicKey> {
        self.peers
            .iter()
            .flatten()
            .filter(|c| c.present)
            .map(|c| c.key)
            .collect()
    }

    /// Its present private key.
    pub(crate) fn private(&self) -> Option<PrivateKey> {
        self.private_of(self.key_number)
    }

    fn private_of(&self, number: u64) -> Option<PrivateKey> {
        let stream = 0x30_0000 + (self.index as u64) * 0x1000 + number;
        PrivateKey::new(Random::new(self.seed, stream).bytes())
    }

    fn public_of(&self, number: u64, crypto: &Provider) -> PublicKey {
        let private = self.private_of(number);
        PublicKey(private.map_or([0; 32], |private| crypto.dh.public(private.expose())))
    }
}

impl Node {
    /// Whether the device has called its wake-up since the last time.
    pub(crate) fn take_wake(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    /// Drops of received data and handshake messages so far.
    #[must_use]
    pub(crate) fn refused(&self) -> u64 {
        const IN: [DropReason; 19] = [
            DropReason::Length,
            DropReason::Type,
            DropReason::UnknownSession,
            DropReason::ExpiredSession,
            DropReason::NotAuthentic,
            DropReason::Exhausted,
            DropReason::Replayed,
            DropReason::NotReady,
            DropReason::Mac1,
            DropReason::CookieDemanded,
            DropReason::CookieWithheld,
            DropReason::RateLimited,
            DropReason::InitiationNotAuthentic,
            DropReason::UnknownPeer,
            DropReason::InitiationReplayed,
            DropReason::InitiationFlood,
            DropReason::UnknownHandshake,
            DropReason::PostQuantumRequired,
            DropReason::PartRepeated,
        ];
        let counters = self.path.counters();
        let more = counters.count(DropReason::ResponseNotAuthentic)
            + counters.count(DropReason::CookieRefused);
        IN.into_iter()
            .map(|cause| counters.count(cause))
            .sum::<u64>()
            + more
    }
}

/// The inner prefixes of a host.
#[must_use]
pub(crate) fn prefixes(host: usize) -> Vec<AllowedIpChange> {
    let (v4, v6) = inner_addresses(host);
    [(IpAddr::V4(v4), 32), (IpAddr::V6(v6), 128)]
        .into_iter()
        .filter_map(|(address, length)| Prefix::new(address, length))
        .map(AllowedIpChange::Add)
        .collect()
}

/// An address that no host has had.
pub(crate) fn new_address(host: usize, random: &mut Random) -> SocketAddr {
    let number = random.below(1 << 24) as u32;
    let port = random.between(1024, 65536) as u16;
    if random.once_in(3) {
        let segments = [
            0x2001,
            0xdb8,
            host as u16,
            0,
            0,
            0,
            (number >> 16) as u16,
            number as u16,
        ];
        SocketAddr::from((Ipv6Addr::from(segments), port))
    } else {
        let [_, a, b, c] = number.to_be_bytes();
        SocketAddr::from((Ipv4Addr::new(100 + host as u8, a, b, c), port))
    }
}

/// The number of the host that has or had `address`.
#[must_use]
pub(crate) fn owner(address: SocketAddr) -> Option<usize> {
    match address.ip() {
        IpAddr::V4(v4) => v4.octets()[0]
            .checked_sub(100)
            .map(usize::from)
            .filter(|n| *n < 8),
        IpAddr::V6(v6) => Some(usize::from(v6.segments()[2])).filter(|n| *n < 8),
    }
}

/// How a device sees a sender, as one of its own addresses was sent to.
#[must_use]
pub(crate) fn endpoint(remote: SocketAddr, local: SocketAddr) -> Endpoint {
    Endpoint {
        remote,
        local: Some(LocalAddress {
            address: local.ip(),
            interface: 1,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_tell_their_owner() {
        let mut random = Random::new(3, 3);
        for host in 0..8 {
            for _ in 0..20 {
                assert_eq!(owner(new_address(host, &mut random)), Some(host));
            }
        }
        assert_eq!(owner(SocketAddr::from(([203, 0, 113, 1], 5))), None);
    }

    #[test]
    fn fires_when_a_staged_packet_is_neither_sent_nor_counted() {
        let mut staged = Staged::default();
        staged.entered(3);
        staged.check(3, 0).unwrap();
        staged.flushed();
        staged.check(2, 0).unwrap();
        staged.check(1, 1).unwrap();
        assert!(staged.check(0, 1).is_err());
    }

    #[test]
    fn fires_when_an_idle_device_wakes_too_often() {
        let mut idle = Idle::default();
        for _ in 0..3 {
            idle.woken(false, 3).unwrap();
        }
        assert!(idle.woken(false, 3).is_err());
        idle.woken(true, 3).unwrap();
        idle.woken(false, 3).unwrap();
        idle.used();
    }

    #[test]
    fn staged_keepalives_do_not_hide_later_losses() {
        let mut staged = Staged::default();
        staged.entered(1);
        // A keepalive was there first, and both were purged.
        staged.check(0, 2).unwrap();
        staged.entered(1);
        assert!(staged.check(0, 2).is_err());
    }
}

//! A simulated host: clocks, address, configuration, timestamp file, and the device while it runs.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use taupe_crypto::Provider;
use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::limits::UNDER_LOAD_BACKLOG;
use taupe_protocol::testing::PeerSnapshot;
use taupe_protocol::time::{Instant, Now, Tai64N};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{DataPath, Device, DropReason, Endpoint, LocalAddress, ReceivedBatch, Timer};

use crate::ledger::inner_addresses;
use crate::plan::{MILLISECOND, Nanos};
use crate::post_quantum::HybridConf;
use crate::pulse::Pulse;
use crate::random::Random;
use crate::sessions::Sessions;
use crate::violation::{Invariant, Violation};

/// Limit of packets that wait for one peer, as in the Linux kernel.
const MAX_STAGED: usize = 128;
/// Limit of hybrid handshakes that a peer has begun and not finished (docs/post-quantum.md).
const MAX_HALVES: usize = 4;
/// More than the time for which a device reserves timestamps in advance.
const LABELS_AHEAD: Duration = Duration::from_secs(70);
/// Correct wall clock at the start: 2026-01-01.
const WALL_START: i64 = 1_767_225_600_000_000_000;
/// Boot clock of a host at its first start.
const BOOT_START: i64 = 1_000_000_000;

/// Configuration of one host for another.
#[derive(Clone, Copy)]
pub(crate) struct Conf {
    /// The other's key as configured here.
    pub(crate) key: PublicKey,
    /// Number of the preshared key; 0 is none.
    pub(crate) preshared: u64,
    /// Persistent keepalive in seconds.
    pub(crate) keepalive: u16,
    /// The configured endpoint.
    pub(crate) endpoint: Option<SocketAddr>,
    /// True while the peer is configured.
    pub(crate) present: bool,
    /// True if the peer has its inner addresses as allowed IPs.
    pub(crate) allowed: bool,
    /// Number of times that the peer has been added.
    pub(crate) generation: u64,
    /// Settings of hybrid handshakes with it, if any.
    pub(crate) hybrid: Option<HybridConf>,
}

/// A simulated host.
pub(crate) struct Host {
    /// Its number.
    pub(crate) index: usize,
    /// Its address.
    pub(crate) address: SocketAddr,
    /// Its public key.
    pub(crate) public: PublicKey,
    /// Its configuration for each other host.
    pub(crate) peers: Vec<Option<Conf>>,
    /// The device, while the host runs.
    pub(crate) node: Option<Node>,
    /// Start of the suspend, if it is suspended.
    pub(crate) asleep: Option<Nanos>,
    /// End of its load.
    pub(crate) loaded_until: Nanos,
    /// Last time at which something kept it from exchanging packets.
    pub(crate) disturbed: Nanos,
    /// Number of devices started here.
    pub(crate) incarnation: u64,
    /// Number of its seed of ML-KEM keys.
    pub(crate) seed_number: u64,
    /// True if it has such a seed.
    pub(crate) has_seed: bool,
    /// Peers, by key, for which `prefer` has become `require`; survives crashes, like timestamps.
    pub(crate) pins: BTreeSet<PublicKey>,
    pub(crate) crypto: &'static Provider,
    pub(crate) seed: u64,
    key_number: u64,
    boot_zero: i64,
    wall_offset: i64,
    /// Latest reserved timestamps by public key; survive crashes.
    labels: BTreeMap<PublicKey, Tai64N>,
    /// Upper bound of the timestamps sent with the current key, as wall time.
    label_bound: Duration,
    /// After a crash without timestamp file: peers may reject timestamps up to this one.
    locked_until: Duration,
}

/// A running device with its checkers.
pub(crate) struct Node {
    /// The device.
    pub(crate) device: Device,
    /// The data path, which moves packets.
    pub(crate) path: Arc<DataPath>,
    /// Its sessions.
    pub(crate) sessions: Sessions,
    /// Expected messages to each host.
    pub(crate) pulses: Vec<Pulse>,
    /// Staged packets.
    pub(crate) staged: Staged,
    /// The next deadline on the boot clock, updated after every call.
    pub(crate) deadline: Option<(Instant, Timer)>,
    /// Address from which each host was last received.
    pub(crate) sources: Vec<Option<SocketAddr>>,
    /// Its wake-ups without effect.
    pub(crate) idle: Idle,
    /// A reused buffer.
    pub(crate) sorted: ReceivedBatch,
    woken: Arc<AtomicBool>,
}

/// Expected state of staged packets.
#[derive(Default)]
pub(crate) struct Staged {
    /// Packets that must still be waiting.
    waiting: i64,
    /// Drops accounted for so far.
    dropped: u64,
}

impl Staged {
    /// Records staged packets.
    pub(crate) fn entered(&mut self, count: u64) {
        self.waiting += count as i64;
    }

    /// Records that a staged packet has been sent.
    pub(crate) fn flushed(&mut self) {
        self.waiting -= 1;
    }

    /// Compares with the actual numbers of waiting and dropped packets. The actual number may be
    /// larger, because keepalives wait too.
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

/// Number of wake-ups without effect since the last event.
#[derive(Default)]
pub(crate) struct Idle(usize);

impl Idle {
    /// Resets the number after an event.
    pub(crate) fn used(&mut self) {
        self.0 = 0;
    }

    /// Records a handled deadline. Each of `timers` may have been stopped after it was armed, and
    /// may then cause one wake-up without effect.
    ///
    /// # Errors
    /// If there are more in a row.
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

/// State of a device that a message may change.
#[derive(PartialEq, Debug)]
pub(crate) struct Digest {
    peers: Vec<Option<PeerSnapshot>>,
    sessions: usize,
    halves: usize,
    pending: usize,
    deadline: Option<(Instant, Timer)>,
    attention: bool,
}

impl Digest {
    /// Removes the state that a hybrid initiation may change before its session has been used.
    fn without_provisional_effects(self) -> Self {
        let peers = self.peers.into_iter();
        Self {
            peers: peers
                .map(|peer| peer.map(PeerSnapshot::without_provisional_effects))
                .collect(),
            sessions: 0,
            halves: 0,
            deadline: None,
            ..self
        }
    }
}

impl Host {
    /// Creates a host that has not booted.
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
            pins: BTreeSet::new(),
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

    /// Returns the boot clock.
    #[must_use]
    pub(crate) fn boot(&self, now: Nanos) -> Instant {
        Instant((now as i64 - self.boot_zero) as u64)
    }

    /// Returns both clocks.
    #[must_use]
    pub(crate) fn clocks(&self, now: Nanos) -> Now {
        let wall = (now as i64 + self.wall_offset).max(0) as u64;
        Now {
            boot: self.boot(now),
            wall: Duration::from_nanos(wall),
        }
    }

    /// Returns the device's next deadline in the time of the world.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        if self.asleep.is_some() {
            return None;
        }
        let (at, _) = self.node.as_ref()?.deadline?;
        Some((at.0 as i64 + self.boot_zero).max(0) as Nanos)
    }

    /// Returns true if the device runs and is not suspended.
    #[must_use]
    pub(crate) fn runs(&self) -> bool {
        self.node.is_some() && self.asleep.is_none()
    }

    /// Returns the number of waiting handshake messages.
    #[must_use]
    pub(crate) fn backlog(&self, now: Nanos) -> usize {
        if now < self.loaded_until {
            UNDER_LOAD_BACKLOG
        } else {
            0
        }
    }

    /// Returns true if peers may reject its initiations because the record of its timestamps is
    /// lost.
    #[must_use]
    pub(crate) fn locked_out(&self, now: Nanos) -> bool {
        self.clocks(now).wall <= self.locked_until
    }

    /// Moves the wall clock.
    pub(crate) fn jump(&mut self, by: i64) {
        // The clock's range is limited to two hundred years; no plan jumps that far.
        self.wall_offset = (self.wall_offset + by).clamp(0, 4 * WALL_START);
    }

    /// Records that an initiation is sent, which raises the bound of its timestamp.
    pub(crate) fn label_used(&mut self, now: Nanos) {
        let next = self.label_bound + Duration::from_millis(50);
        self.label_bound = self.clocks(now).wall.max(next);
    }

    /// Stores a device's reservation of timestamps: later than before, or earlier if it returns
    /// unused ones.
    pub(crate) fn reserve_labels(&mut self, key: PublicKey, up_to: Tai64N) {
        self.labels.insert(key, up_to);
    }

    /// Starts a device with the current configuration.
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
        // Cannot fail with fewer than 2^20 peers.
        let _ = node.device.update(clocks, update);
        node.device.set_up(clocks);
        self.node = Some(node);
        for other in 0..self.peers.len() {
            self.reset_pulse(other, now);
        }
    }

    /// Ends the device without cleaning up. `keep_labels` is true if the timestamp file survives.
    pub(crate) fn crash(&mut self, keep_labels: bool) -> Option<Sessions> {
        if !keep_labels {
            self.labels.clear();
            self.pins.clear();
            self.locked_until = self.locked_until.max(self.label_bound);
        }
        // The next start must treat all reserved timestamps as used.
        self.label_bound += LABELS_AHEAD;
        self.asleep = None;
        self.node.take().map(|node| node.sessions)
    }

    /// Changes the private key; the timestamp file has no entry for the new one.
    pub(crate) fn change_key(&mut self, crypto: &Provider) {
        self.key_number += 1;
        self.public = self.public_of(self.key_number, crypto);
        self.label_bound = Duration::ZERO;
        self.locked_until = Duration::ZERO;
    }

    /// Returns the update that sets the current private key.
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

    /// Returns the update that configures another host completely.
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

    /// Returns the preshared key of a pair; both sides compute the same.
    #[must_use]
    pub(crate) fn preshared(&self, other: usize, number: u64) -> PresharedKey {
        if number == 0 {
            return PresharedKey::NONE;
        }
        let (low, high) = (self.index.min(other) as u64, self.index.max(other) as u64);
        let stream = 0x20_0000 + (low << 8 | high) * 0x1000 + number;
        PresharedKey::new(Random::new(self.seed, stream).bytes())
    }

    /// Returns the endpoint to which the device sends for `other`.
    pub(crate) fn endpoint_of(&mut self, other: usize) -> Option<SocketAddr> {
        let key = self.peers[other].as_ref().filter(|conf| conf.present)?.key;
        let peer = self.node.as_mut()?.device.peer(&key)?;
        peer.endpoint().map(|endpoint| endpoint.remote)
    }

    /// Resets the expectations for `other`.
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

    /// Returns the other host whose key is `key` here.
    #[must_use]
    pub(crate) fn peer_of(&self, key: &PublicKey) -> Option<usize> {
        self.peers
            .iter()
            .position(|conf| conf.is_some_and(|conf| conf.present && conf.key == *key))
    }

    /// Returns the state that an unauthenticated datagram must not change.
    pub(crate) fn digest(&mut self) -> Option<Digest> {
        let keys = self.keys();
        self.digest_of(&keys)
    }

    /// Returns the state of one peer that a part of a hybrid initiation in its name must not
    /// change.
    pub(crate) fn provisional_digest(&mut self, other: usize) -> Option<Digest> {
        let conf = self.peers[other].filter(|conf| conf.present)?;
        self.digest_of(&[conf.key])
            .map(Digest::without_provisional_effects)
    }

    fn digest_of(&mut self, keys: &[PublicKey]) -> Option<Digest> {
        let node = self.node.as_mut()?;
        Some(Digest {
            peers: keys.iter().map(|key| node.device.snapshot(key)).collect(),
            sessions: node.sessions.alive(),
            halves: node.device.provisional_handshakes(),
            pending: node.device.pending_handshakes(),
            deadline: node.device.next_deadline(),
            attention: node.device.has_pending_work(),
        })
    }

    /// Checks staged packets and the limits of memory.
    ///
    /// # Errors
    /// If packets are missing or a limit is exceeded.
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
        let halves = node.device.provisional_handshakes();
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

    /// Returns its current private key.
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
    /// Returns true if the device has called its waker since the last call.
    pub(crate) fn take_wake(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    /// Returns the number of dropped data and handshake messages so far.
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

/// Returns the inner prefixes of a host.
#[must_use]
pub(crate) fn prefixes(host: usize) -> Vec<AllowedIpChange> {
    let (v4, v6) = inner_addresses(host);
    [IpAddr::V4(v4), IpAddr::V6(v6)]
        .map(|address| AllowedIpChange::Add(address.into()))
        .into()
}

/// Returns an address that no host has used.
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

/// Returns the number of the host that has or had `address`.
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

/// Returns the endpoint of a sender, as seen by a device at a local address.
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
        // A keepalive was staged first, and both were dropped.
        staged.check(0, 2).unwrap();
        staged.entered(1);
        assert!(staged.check(0, 2).is_err());
    }
}

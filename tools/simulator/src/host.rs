//! A simulated host: clocks, address, configuration, timestamp file, and the device while it runs.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use taupe_crypto::Provider;
use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::limits::UNDER_LOAD_BACKLOG;
use taupe_protocol::time::{Instant, Now, Tai64N};
use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{Device, Lanes, ReceivedBatch};

use crate::plan::{MILLISECOND, Nanos};
use crate::random::Random;
use crate::sessions::Sessions;
use crate::timer_model::TimerModel;

mod addresses;
mod hybrid;
mod node;
mod state;

pub(crate) use addresses::{endpoint, new_address, owner, prefixes};
pub(crate) use hybrid::HybridConf;
use node::{Idle, Node, Staged};
pub(crate) use state::Digest;

/// More than the time for which a device reserves timestamps in advance.
const TIMESTAMPS_AHEAD: Duration = Duration::from_secs(70);
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
    pub(crate) suspended_since: Option<Nanos>,
    /// End of its load.
    pub(crate) loaded_until: Nanos,
    /// Last time at which something kept it from exchanging packets.
    pub(crate) disturbed: Nanos,
    /// Lanes of the device; each start chooses them anew.
    pub(crate) lanes: Lanes,
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
    timestamps: BTreeMap<PublicKey, Tai64N>,
    /// Upper bound of the timestamps sent with the current key, as wall time.
    timestamp_bound: Duration,
    /// After a crash without timestamp file: peers may reject timestamps up to this one.
    locked_until: Duration,
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
            suspended_since: None,
            loaded_until: 0,
            disturbed: 0,
            lanes: Lanes::One,
            incarnation: 0,
            seed_number: 0,
            has_seed: false,
            pins: BTreeSet::new(),
            crypto,
            seed,
            key_number: 0,
            boot_zero: -BOOT_START - random.below(1 << 50) as i64,
            wall_offset: WALL_START + random.between(0, 20_000 * MILLISECOND) as i64,
            timestamps: BTreeMap::new(),
            timestamp_bound: Duration::ZERO,
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
        if self.suspended_since.is_some() {
            return None;
        }
        let (at, _) = self.node.as_ref()?.deadline?;
        Some((at.0 as i64 + self.boot_zero).max(0) as Nanos)
    }

    /// Returns true if the device runs and is not suspended.
    #[must_use]
    pub(crate) fn runs(&self) -> bool {
        self.node.is_some() && self.suspended_since.is_none()
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
    pub(crate) fn timestamp_used(&mut self, now: Nanos) {
        let next = self.timestamp_bound + Duration::from_millis(50);
        self.timestamp_bound = self.clocks(now).wall.max(next);
    }

    /// Stores a device's reservation of timestamps: later than before, or earlier if it returns
    /// unused ones.
    pub(crate) fn reserve_timestamps(&mut self, key: PublicKey, up_to: Tai64N) {
        self.timestamps.insert(key, up_to);
    }

    /// Starts a device with the current configuration.
    pub(crate) fn start(&mut self, crypto: &'static Provider, now: Nanos, reboot: bool) {
        if reboot {
            self.boot_zero = now as i64 - BOOT_START;
        }
        self.incarnation += 1;
        let stream = 0x10_0000 + (self.index as u64) * 0x1000 + self.incarnation;
        self.lanes = lanes(&mut Random::new(self.seed, 0x50_0000 + stream));
        let woken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&woken);
        let device = Device::with_lanes(
            crypto,
            Box::new(Random::new(self.seed, stream)),
            Arc::new(move || flag.store(true, Ordering::Relaxed)),
            self.lanes,
        );
        let mut node = Node {
            path: Arc::clone(device.data_path()),
            device,
            sessions: Sessions::new(self.lanes),
            timers: vec![TimerModel::default(); self.peers.len()],
            staged: Staged::default(),
            deadline: None,
            sources: vec![None; self.peers.len()],
            idle: Idle::default(),
            received: ReceivedBatch::default(),
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
            self.reset_timers(other, now);
        }
    }

    /// Ends the device without cleaning up. `keep_timestamps` is true if the timestamp file
    /// survives.
    pub(crate) fn crash(&mut self, keep_timestamps: bool) -> Option<Sessions> {
        if !keep_timestamps {
            self.timestamps.clear();
            self.pins.clear();
            self.locked_until = self.locked_until.max(self.timestamp_bound);
        }
        // The next start must treat all reserved timestamps as used.
        self.timestamp_bound += TIMESTAMPS_AHEAD;
        self.suspended_since = None;
        self.node.take().map(|node| node.sessions)
    }

    /// Changes the private key; the timestamp file has no entry for the new one.
    pub(crate) fn change_key(&mut self, crypto: &Provider) {
        self.key_number += 1;
        self.public = self.public_of(self.key_number, crypto);
        self.timestamp_bound = Duration::ZERO;
        self.locked_until = Duration::ZERO;
    }

    /// Returns the update that sets the current private key.
    #[must_use]
    pub(crate) fn key_update(&self) -> PrivateKeyUpdate {
        PrivateKeyUpdate {
            key: self.private(),
            timestamp_floor: self
                .timestamps
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
    pub(crate) fn reset_timers(&mut self, other: usize, now: Nanos) {
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
            node.timers[other].reset(boot, keepalive * 1_000_000_000, endpoint);
        }
    }

    /// Returns the other host whose key is `key` here.
    #[must_use]
    pub(crate) fn peer_of(&self, key: &PublicKey) -> Option<usize> {
        self.peers
            .iter()
            .position(|conf| conf.is_some_and(|conf| conf.present && conf.key == *key))
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

/// Chooses the lanes of a device. About half of the devices have one.
fn lanes(random: &mut Random) -> Lanes {
    if random.once_in(2) {
        return Lanes::One;
    }
    let [_, several @ ..] = Lanes::ALL;
    several[random.index(several.len())]
}

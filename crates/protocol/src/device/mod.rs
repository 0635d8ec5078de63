//! Control half of a device: handshakes, timers and configuration, one file each.

mod configure;
mod embedding;
mod endpoint_names;
mod handshake;
mod hybrid_initiator;
mod hybrid_responder;
mod hybrid_settings;
mod identity;
mod indices;
mod network_change;
mod pending;
mod responder;
#[cfg(feature = "testing")]
mod testing;
mod timers;

#[cfg(feature = "testing")]
pub use testing::PeerSnapshot;

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use taupe_crypto::Provider;
use thiserror::Error;

use crate::device::identity::DeviceIdentity;
use crate::drop_reason::DropReason;
use crate::endpoint::Endpoint;
use crate::handshake::rate_limit::{CookieLimiter, RateLimiter};
use crate::hybrid::EarlyParts;
use crate::key::{PqPrivateKey, PublicKey};
use crate::lanes::{Lanes, Steering};
use crate::limits::MAX_PEERS;
use crate::output::Output;
use crate::path::DataPath;
use crate::peer::{Peer, PeerId, Peers, Timer, Wake, clear_local};
use crate::time::{Instant, Now};
use crate::{Random, lock};

/// Reason why an update was refused. Nothing of it has been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UpdateError {
    /// More than 2^20 peers.
    #[error("a device has at most {MAX_PEERS} peers; the update would make {0}")]
    TooManyPeers(usize),
}

/// The control half of a WireGuard device.
///
/// After each call the caller takes all outputs from [`Device::poll_output`]. Then it waits for
/// [`Device::next_deadline`], a message, a wake-up or a change of configuration.
pub struct Device {
    pub(crate) peers: Peers,
    pub(crate) core: Core,
}

/// State of a device without its peers. A method for one peer borrows the peer's entry
/// separately, so that a message or a deadline looks its peer up once.
pub(crate) struct Core {
    pub(crate) crypto: &'static Provider,
    pub(crate) random: Box<dyn Random + Send>,
    pub(crate) path: Arc<DataPath>,
    pub(crate) up: bool,
    pub(crate) identity: Option<DeviceIdentity>,
    pub(crate) pq_private_key: Option<PqPrivateKey>,
    /// The peer of each initiation that waits for its response, by local index.
    pub(crate) pending: BTreeMap<u32, PeerId>,
    /// The peer of each unconfirmed hybrid handshake, by source address and the initiator's
    /// index.
    pub(crate) provisional_peers: BTreeMap<(SocketAddr, u32), PeerId>,
    pub(crate) early_parts: EarlyParts,
    pub(crate) under_load_since: Option<Instant>,
    pub(crate) limiter: RateLimiter,
    pub(crate) cookie_limiter: CookieLimiter,
    pub(crate) outputs: VecDeque<Output>,
    /// The upper 24 bits of all indices, if the caller has set them
    /// ([`Device::set_index_prefix`]).
    pub(crate) index_prefix: Option<u32>,
    pub(crate) deadlines: BTreeSet<(Instant, PeerId, Timer)>,
}

impl Device {
    /// Returns a device with one lane, without a key and peers, down. The device calls `wake`,
    /// from any thread, when [`Device::handle_pending_work`] has work to do.
    #[must_use]
    pub fn new(crypto: &'static Provider, random: Box<dyn Random + Send>, wake: Wake) -> Self {
        Self::with_lanes(crypto, random, wake, Lanes::One)
    }

    /// Returns a device with `lanes` lanes that is otherwise as [`Self::new`] makes it.
    #[must_use]
    pub fn with_lanes(
        crypto: &'static Provider,
        mut random: Box<dyn Random + Send>,
        wake: Wake,
        lanes: Lanes,
    ) -> Self {
        let steering = Steering::new(lanes, random.as_mut());
        let core = Core {
            crypto,
            random,
            path: Arc::new(DataPath::new(wake, steering)),
            up: false,
            identity: None,
            pq_private_key: None,
            pending: BTreeMap::new(),
            provisional_peers: BTreeMap::new(),
            early_parts: EarlyParts::default(),
            under_load_since: None,
            limiter: RateLimiter::default(),
            cookie_limiter: CookieLimiter::default(),
            outputs: VecDeque::new(),
            index_prefix: None,
            deadlines: BTreeSet::new(),
        };
        Self {
            peers: Peers::default(),
            core,
        }
    }

    /// Returns the device's public key, if it has a private key.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        self.core
            .identity
            .as_ref()
            .map(|identity| identity.keys.public)
    }

    /// Returns the half that carries packets.
    #[must_use]
    pub fn data_path(&self) -> &Arc<DataPath> {
        &self.core.path
    }

    /// Checks whether the device is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.core.up
    }

    /// Returns the next action for the caller. Actions are ordered.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.core.outputs.pop_front()
    }

    /// Returns the time by which [`Device::handle_deadline`] must be called, and the timer that expires then.
    #[must_use]
    pub fn next_deadline(&self) -> Option<(Instant, Timer)> {
        self.core
            .deadlines
            .first()
            .map(|(at, _, reason)| (*at, *reason))
    }

    /// Brings the device up. Peers with a persistent keepalive send one at once.
    pub fn set_up(&mut self, now: Now) {
        if self.core.up {
            return;
        }
        self.core.up = true;
        for id in self.peers.ids() {
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            let mut state = lock(&entry.peer.state);
            state.up = true;
            // Packets staged more than [`EARLY`] ago were read while the interface was going
            // down.
            let early = state.staging.staged_before_up.take();
            if early.is_some_and(|at| now.boot.since(at) > EARLY) {
                let purged = state.staging.packets.len() as u64;
                state.staging.packets.clear();
                self.core
                    .path
                    .counters()
                    .add(DropReason::StagedPurged, purged);
            }
            let keepalive = !state.keepalive.interval.is_zero();
            drop(state);
            if keepalive {
                self.core.send_keepalive(now, entry);
            } else {
                self.core.flush(now, entry);
            }
            self.core.run_pending_work(now, entry);
        }
    }

    /// Ends the device: stops all traffic, erases all keys, and returns timestamps that were
    /// reserved but not used. Call [`Device::poll_output`] afterwards.
    pub fn close(&mut self) {
        self.set_down();
        if let Some(mut identity) = self.core.identity.take() {
            identity.release(&mut self.core.outputs);
        }
        self.core.pq_private_key = None;
    }

    /// Brings the device down and erases all session and handshake keys.
    pub fn set_down(&mut self) {
        self.core.up = false;
        for id in self.peers.ids() {
            if let Some(entry) = self.peers.entry(id) {
                self.core.stop_peer(entry);
            }
        }
    }

    /// Processes the data path's requests; call it after a wake-up.
    pub fn handle_pending_work(&mut self, now: Now) {
        for peer in self.core.path.work_queue.take() {
            // The number may belong to another peer by now.
            if let Some(entry) = self.peers.entry(peer.id())
                && Arc::ptr_eq(&entry.peer, &peer)
            {
                lock(&peer.state).control.notified = false;
                self.core.run_pending_work(now, entry);
            }
        }
    }

    /// Checks whether [`Device::handle_pending_work`] has work to do.
    #[must_use]
    pub fn has_pending_work(&self) -> bool {
        !self.core.path.work_queue.is_empty()
    }

    /// Removes the local addresses of endpoints for which `keep` does not hold, after addresses
    /// or routes of the system have changed. The system then chooses the source address again.
    pub fn retain_local_addresses(
        &mut self,
        mut keep: impl FnMut(&Endpoint, &crate::LocalAddress) -> bool,
    ) {
        for entry in self.peers.entries.iter().flatten() {
            let Some(endpoint) = entry.peer.endpoint() else {
                continue;
            };
            let stale = endpoint.local.is_some_and(|local| !keep(&endpoint, &local));
            let mut state = lock(&entry.peer.state);
            // A message from elsewhere may have changed the endpoint in the meantime.
            if stale && state.endpoint == Some(endpoint) {
                clear_local(&mut state);
            }
        }
    }

    /// Removes the local address of the peers at `endpoint`, after the system has refused to send
    /// from it.
    pub fn forget_local_address(&mut self, endpoint: &Endpoint) {
        for entry in self.peers.entries.iter().flatten() {
            if entry.peer.endpoint().as_ref() == Some(endpoint) {
                entry.peer.clear_local_address();
            }
        }
    }

    /// Returns the peer with this public key.
    pub fn peer(&mut self, key: &PublicKey) -> Option<Arc<Peer>> {
        let id = self.peers.find(key)?;
        Some(Arc::clone(&self.peers.entry(id)?.peer))
    }
}

/// Packets of an interface may arrive up to this long before the notice that it is up.
const EARLY: Duration = Duration::from_secs(1);

//! The control half: configuration, timers, and what is sent without being
//! asked. Handshakes are in [`crate::handshake`].

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use taupe_crypto::{Provider, SharedSecret, TAG_LEN};
use thiserror::Error;

use crate::cookie::{Checker, Stamper};
use crate::key::{PresharedKey, PublicKey};
use crate::limits::{
    ERASE_AFTER_TIME, KEEPALIVE_TIMEOUT, MAX_HANDSHAKE_ATTEMPTS, MAX_JITTER, MAX_PEERS,
};
use crate::message::{DATA_HEADER_LEN, DATA_OVERHEAD};
use crate::noise::{Initiator, StaticKeys};
use crate::path::{Cause, DataPath, Routes, Wake};
use crate::peer::{Endpoint, Link, Peer, PeerId, Traffic};
use crate::planted::{self, Defect};
use crate::ratelimit::RateLimiter;
use crate::time::{Instant, Now, Tai64N};
use crate::timer::Reason;
use crate::update::{
    AllowedIpChange, DeviceStatus, DeviceUpdate, PeerStatus, PeerUpdate, Prefix, PrivateKeyUpdate,
};
use crate::{Random, lock};

/// What a device wants done. In order: what comes first must have happened
/// before the next is begun.
pub enum Output {
    /// Send a datagram.
    Transmit {
        /// Where to, and from which local address.
        endpoint: Endpoint,
        /// The traffic class (IPv4 TOS) of the outer header: DSCP and ECN.
        tos: u8,
        /// The message.
        datagram: Vec<u8>,
    },
    /// Remember, for as long as the private key is used, that handshake labels
    /// up to this one may have been sent with it, and give it back with
    /// [`PrivateKeyUpdate::timestamp_floor`]. Must be durable before the next
    /// output is sent, or a crash together with a clock that went back could
    /// lock this device out of its peers.
    ReserveLabels {
        /// The public key of the device.
        public_key: PublicKey,
        /// The greatest label that may be sent from now on.
        up_to: Tai64N,
    },
}

/// Why an update was refused. Nothing of it has been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UpdateError {
    /// More than 2^20 peers.
    #[error("a device has at most {MAX_PEERS} peers; the update would make {0}")]
    TooManyPeers(usize),
}

/// The control half of a WireGuard device.
///
/// After every call the caller takes all of [`Device::poll_output`] and then
/// waits until [`Device::next_deadline`], a message, a wake-up or a change of
/// configuration.
pub struct Device {
    pub(crate) crypto: &'static Provider,
    pub(crate) random: Box<dyn Random + Send>,
    pub(crate) path: Arc<DataPath>,
    pub(crate) up: bool,
    pub(crate) identity: Option<Identity>,
    pub(crate) peers: Peers,
    /// Which peer a handshake that waits for its response is with, by the local
    /// index it has.
    pub(crate) pending: BTreeMap<u32, PeerId>,
    pub(crate) loaded: Option<Instant>,
    pub(crate) limiter: RateLimiter,
    pub(crate) outputs: VecDeque<Output>,
    deadlines: BTreeSet<(Instant, PeerId, Reason)>,
}

/// Everything that follows from the private key.
pub(crate) struct Identity {
    pub(crate) keys: StaticKeys,
    pub(crate) checker: Checker,
    /// Labels up to this one may have been sent, before this device was made or
    /// to peers that have been removed.
    floor: Tai64N,
    /// Labels up to this one have been announced by `ReserveLabels`.
    reserved: Tai64N,
}

/// How far ahead labels are reserved: few writes, and after a crash with a
/// clock that went back, labels are at most this far ahead of the clock.
const LABEL_STEP: Duration = Duration::from_secs(60);

impl Identity {
    /// The label of the next initiation to a peer whose last one was `last`:
    /// the clock, or one grain above the last where the clock has gone back.
    pub(crate) fn label(
        &mut self,
        now: Now,
        last: Option<Tai64N>,
        outputs: &mut VecDeque<Output>,
    ) -> Tai64N {
        let clock = Tai64N::from_wall(now.wall);
        if planted::is(Defect::ClockLockout) {
            return clock;
        }
        let label = clock.max(last.unwrap_or(self.floor).successor());
        if label > self.reserved {
            self.reserved = label.later(LABEL_STEP);
            outputs.push_back(Output::ReserveLabels {
                public_key: self.keys.public,
                up_to: self.reserved,
            });
        }
        label
    }
}

/// What handshakes need of a peer.
pub(crate) struct Slot {
    pub(crate) peer: Arc<Peer>,
    /// Counts up over all peers of the device: the order they were added in.
    added: u64,
    pub(crate) preshared_key: PresharedKey,
    /// DH of the two static keys, computed when a handshake first needs it;
    /// `Some(None)` when the peer's key is of low order.
    pub(crate) static_static: Option<Option<SharedSecret>>,
    /// The initiation that waits for a response, by its local index.
    pub(crate) initiation: Option<(u32, Initiator)>,
    pub(crate) stamper: Stamper,
    /// The label of the last initiation sent.
    pub(crate) label_sent: Option<Tai64N>,
    /// The greatest label received.
    pub(crate) label_received: Option<Tai64N>,
    pub(crate) initiation_accepted: Option<Instant>,
    pub(crate) latest_handshake: Option<Duration>,
    deadline: Option<(Instant, Reason)>,
}

impl Slot {
    pub(crate) fn static_static(
        &mut self,
        crypto: &Provider,
        keys: &StaticKeys,
    ) -> Option<SharedSecret> {
        self.static_static
            .get_or_insert_with(|| {
                crypto
                    .dh
                    .agree(keys.private.expose(), &self.peer.public_key().0)
            })
            .clone()
    }
}

/// The peers of a device by number, and their numbers by key.
#[derive(Default)]
pub(crate) struct Peers {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    by_key: BTreeMap<PublicKey, PeerId>,
    added: u64,
}

impl Peers {
    pub(crate) fn find(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn slot(&mut self, id: PeerId) -> Option<&mut Slot> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    fn ids(&self) -> Vec<PeerId> {
        self.by_key.values().copied().collect()
    }

    fn add(&mut self, crypto: &Provider, key: PublicKey) -> PeerId {
        let number = self.free.pop().unwrap_or(self.slots.len() as u32);
        let id = PeerId(number);
        self.added += 1;
        let slot = Slot {
            peer: Arc::new(Peer::new(id, key)),
            added: self.added,
            preshared_key: PresharedKey::NONE,
            static_static: None,
            initiation: None,
            stamper: Stamper::new(crypto, &key),
            label_sent: None,
            label_received: None,
            initiation_accepted: None,
            latest_handshake: None,
            deadline: None,
        };
        if number as usize == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[number as usize] = Some(slot);
        self.by_key.insert(key, id);
        id
    }

    fn remove(&mut self, id: PeerId) -> Option<Slot> {
        let slot = self.slots.get_mut(id.0 as usize)?.take()?;
        self.by_key.remove(slot.peer.public_key());
        self.free.push(id.0);
        Some(slot)
    }
}

impl Device {
    /// A device without key and peers, down. `wake` is called, from any thread,
    /// when [`Device::handle_attention`] has something to do.
    #[must_use]
    pub fn new(crypto: &'static Provider, random: Box<dyn Random + Send>, wake: Wake) -> Self {
        Self {
            crypto,
            random,
            path: Arc::new(DataPath::new(wake)),
            up: false,
            identity: None,
            peers: Peers::default(),
            pending: BTreeMap::new(),
            loaded: None,
            limiter: RateLimiter::default(),
            outputs: VecDeque::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// The half that moves packets.
    #[must_use]
    pub fn data_path(&self) -> &Arc<DataPath> {
        &self.path
    }

    /// Whether the device is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The next thing to be done, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Device::handle_deadline`] must be called at the latest, and why.
    #[must_use]
    pub fn next_deadline(&self) -> Option<(Instant, Reason)> {
        self.deadlines.first().map(|(at, _, reason)| (*at, *reason))
    }

    /// Lets packets flow. Peers with a persistent keepalive send one at once.
    pub fn set_up(&mut self, now: Now) {
        if self.up {
            return;
        }
        self.up = true;
        for id in self.peers.ids() {
            let Some(slot) = self.peers.slot(id) else {
                continue;
            };
            let mut link = lock(&slot.peer.link);
            link.up = true;
            let keepalive = !link.persistent_keepalive.is_zero();
            drop(link);
            if keepalive {
                self.send_keepalive(now, id);
            }
            self.settle(now, id);
        }
    }

    /// Stops everything and erases all session and handshake keys.
    pub fn set_down(&mut self) {
        self.up = false;
        for id in self.peers.ids() {
            self.silence(id);
        }
    }

    /// Applies one transaction of configuration.
    ///
    /// # Errors
    /// If there would be too many peers; nothing is applied then.
    pub fn update(&mut self, now: Now, update: DeviceUpdate) -> Result<(), UpdateError> {
        self.check(&update)?;
        if let Some(private_key) = update.private_key {
            self.set_private_key(now, private_key);
        }
        let mut routes = RoutesEdit::new(&self.path);
        if update.replace_peers {
            for id in self.peers.ids() {
                self.remove_peer(id, &mut routes);
            }
        }
        let mut touched = Vec::with_capacity(update.peers.len());
        for peer in update.peers {
            touched.extend(self.update_peer(peer, &mut routes));
        }
        // Packets that the new configuration lets out must find their routes.
        routes.commit(&self.path);
        for (id, keepalive) in touched {
            if keepalive {
                self.send_keepalive(now, id);
            } else {
                self.flush(now, id);
            }
            self.settle(now, id);
        }
        Ok(())
    }

    /// Whether [`Device::update`] would take `update`.
    ///
    /// # Errors
    /// Those of [`Device::update`].
    pub fn check(&self, update: &DeviceUpdate) -> Result<(), UpdateError> {
        let present = if update.replace_peers {
            0
        } else {
            self.peers.by_key.len()
        };
        let added: BTreeSet<&PublicKey> = update
            .peers
            .iter()
            .filter(|peer| !peer.remove && !peer.update_only)
            .map(|peer| &peer.public_key)
            .filter(|key| update.replace_peers || self.peers.find(key).is_none())
            .collect();
        let total = present + added.len();
        if total > MAX_PEERS {
            return Err(UpdateError::TooManyPeers(total));
        }
        Ok(())
    }

    /// What the device tells of itself.
    #[must_use]
    pub fn status(&self) -> DeviceStatus {
        let mut allowed_ips: BTreeMap<PeerId, Vec<Prefix>> = BTreeMap::new();
        for (prefix, owner) in self.path.routes.load().allowed_ips.iter() {
            allowed_ips.entry(owner).or_default().push(prefix);
        }
        let mut slots: Vec<&Slot> = self.peers.slots.iter().flatten().collect();
        slots.sort_by_key(|slot| slot.added);
        let peers = slots
            .into_iter()
            .map(|slot| {
                let link = lock(&slot.peer.link);
                PeerStatus {
                    public_key: *slot.peer.public_key(),
                    preshared_key: slot.preshared_key.clone(),
                    endpoint: link.endpoint.map(|endpoint| endpoint.remote),
                    latest_handshake: slot.latest_handshake,
                    tx_bytes: link.tx_bytes,
                    rx_bytes: link.rx_bytes,
                    persistent_keepalive: link.persistent_keepalive.as_secs() as u16,
                    allowed_ips: allowed_ips.remove(&slot.peer.id()).unwrap_or_default(),
                }
            })
            .collect();
        DeviceStatus {
            private_key: self.identity.as_ref().map(|i| i.keys.private.clone()),
            peers,
        }
    }

    /// Does what the way of a packet has asked for: after a wake-up.
    pub fn handle_attention(&mut self, now: Now) {
        for peer in self.path.attention.take() {
            let id = peer.id();
            // The number may be another peer's by now.
            let known = self
                .peers
                .slot(id)
                .is_some_and(|s| Arc::ptr_eq(&s.peer, &peer));
            if known {
                lock(&peer.link).told = false;
                self.settle(now, id);
            }
        }
    }

    /// Whether [`Device::handle_attention`] has something to do.
    #[must_use]
    pub fn wants_attention(&self) -> bool {
        !self.path.attention.is_empty()
    }

    /// Does what is due at `now`.
    pub fn handle_deadline(&mut self, now: Now) {
        while let Some((at, id, _)) = self.deadlines.first().copied() {
            if at > now.boot {
                break;
            }
            self.deadlines.pop_first();
            let Some(slot) = self.peers.slot(id) else {
                continue;
            };
            slot.deadline = None;
            let peer = Arc::clone(&slot.peer);
            loop {
                let Some(reason) = lock(&peer.link).timers.expire(now.boot) else {
                    break;
                };
                self.handle_timer(now, id, reason);
            }
            self.settle(now, id);
        }
    }

    /// Forgets from which local address peers are answered: the system's
    /// addresses or routes have changed, and it chooses again.
    pub fn clear_local_addresses(&mut self) {
        for slot in self.peers.slots.iter().flatten() {
            slot.peer.clear_local_address();
        }
    }

    /// Forgets the local address of the peers at `endpoint`, after the system
    /// has refused to send from it.
    pub fn forget_local_address(&mut self, endpoint: &Endpoint) {
        for slot in self.peers.slots.iter().flatten() {
            if slot.peer.endpoint().as_ref() == Some(endpoint) {
                slot.peer.clear_local_address();
            }
        }
    }

    /// Sessions that can receive; for tests and counting.
    #[doc(hidden)]
    #[must_use]
    pub fn sessions(&self) -> Vec<Arc<crate::Session>> {
        self.path.sessions.all()
    }

    /// Where a session would find a packet's answer: its current session's
    /// local index, per peer; for tests.
    #[doc(hidden)]
    pub fn current_session(&mut self, key: &PublicKey) -> Option<Arc<crate::Session>> {
        let id = self.peers.find(key)?;
        let link = lock(&self.peers.slot(id)?.peer.link);
        let current = link.sessions.current.as_ref()?;
        Some(Arc::clone(&current.session))
    }

    /// Sets the counter that the current session with a peer uses next; for
    /// tests of the limits, which cannot be reached by sending.
    #[doc(hidden)]
    pub fn set_counter_for_test(&mut self, key: &PublicKey, next: u64) {
        let Some(slot) = self.peers.find(key).and_then(|id| self.peers.slot(id)) else {
            return;
        };
        if let Some(current) = &mut lock(&slot.peer.link).sessions.current {
            current.next_counter = next;
        }
    }

    /// A peer by its key.
    pub fn peer(&mut self, key: &PublicKey) -> Option<Arc<Peer>> {
        let id = self.peers.find(key)?;
        Some(Arc::clone(&self.peers.slot(id)?.peer))
    }

    fn handle_timer(&mut self, now: Now, id: PeerId, reason: Reason) {
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let peer = Arc::clone(&slot.peer);
        let mut link = lock(&peer.link);
        match reason {
            // A response of this side came between: its Rekey-Timeout first.
            Reason::Retransmit if !link.may_send_initiation(now.boot) => {
                if let Some(at) = link.next_initiation() {
                    let at = at + link.jitter;
                    link.timers.set(Reason::Retransmit, at);
                }
            }
            Reason::Retransmit if link.attempts > MAX_HANDSHAKE_ATTEMPTS => {
                link.timers.stop(Reason::Keepalive);
                let purged = link.staged.len() as u64;
                link.staged.clear();
                drop(link);
                self.path.counters().add(Cause::StagedPurged, purged);
                self.abandon_initiation(id);
            }
            Reason::Retransmit => {
                link.attempts += 1;
                // The route may be what is broken: let the system choose again.
                clear_local(&mut link);
                drop(link);
                self.send_initiation(now, id, true);
            }
            Reason::Keepalive => {
                let another = core::mem::take(&mut link.another_keepalive);
                drop(link);
                self.send_keepalive(now, id);
                if another {
                    let at = now.boot + KEEPALIVE_TIMEOUT;
                    lock(&peer.link).timers.set(Reason::Keepalive, at);
                }
            }
            Reason::DeadPeer => {
                clear_local(&mut link);
                drop(link);
                self.send_initiation(now, id, false);
            }
            Reason::EraseKeys => {
                link.sessions
                    .retire_if(|session| now.boot.since(session.born()) >= ERASE_AFTER_TIME);
            }
            Reason::PersistentKeepalive => {
                let at = now.boot + link.persistent_keepalive;
                if link.endpoint.is_some() && !link.persistent_keepalive.is_zero() {
                    link.timers.set(Reason::PersistentKeepalive, at);
                }
                drop(link);
                self.send_keepalive(now, id);
            }
        }
    }

    /// Sends what is staged, or an empty packet if nothing is.
    pub(crate) fn send_keepalive(&mut self, now: Now, id: PeerId) {
        if let Some(slot) = self.peers.slot(id) {
            let mut link = lock(&slot.peer.link);
            if link.up && link.staged.is_empty() {
                link.staged.push_back(crate::Staged {
                    packet: Vec::new(),
                    ecn: 0,
                });
            }
        }
        self.flush(now, id);
    }

    /// Sends what is staged as far as the session allows, and asks for a
    /// handshake for the rest.
    fn flush(&mut self, now: Now, id: PeerId) {
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let peer = Arc::clone(&slot.peer);
        loop {
            let mut link = lock(&peer.link);
            let (Some(endpoint), false) = (link.endpoint, link.staged.is_empty()) else {
                return;
            };
            let Some((session, counter)) = link.take_counters(now.boot, 1) else {
                link.want_handshake(now.boot);
                return;
            };
            let Some(staged) = link.staged.pop_front() else {
                return;
            };
            let bytes = (staged.packet.len() + DATA_OVERHEAD) as u64;
            let traffic = if staged.packet.is_empty() {
                Traffic::Other
            } else {
                Traffic::Data
            };
            link.sent(now.boot, bytes, traffic);
            drop(link);
            if planted::is(Defect::LostStaged) && counter == 1 {
                continue;
            }
            let mut datagram = vec![0; staged.packet.len() + DATA_OVERHEAD];
            let end = datagram.len() - TAG_LEN;
            datagram[DATA_HEADER_LEN..end].copy_from_slice(&staged.packet);
            let stride = datagram.len();
            session.seal(counter, &mut datagram, stride);
            self.outputs.push_back(Output::Transmit {
                endpoint,
                tos: staged.ecn,
                datagram,
            });
        }
    }

    /// Does what the peer's link wants, takes retired sessions out of the table
    /// and sets the peer's deadline. Ends every piece of work on a peer.
    pub(crate) fn settle(&mut self, now: Now, id: PeerId) {
        loop {
            let Some(slot) = self.peers.slot(id) else {
                return;
            };
            let peer = Arc::clone(&slot.peer);
            let mut link = lock(&peer.link);
            let wants = core::mem::take(&mut link.wants);
            if wants.confirmed {
                link.timers.stop(Reason::Retransmit);
                link.attempts = 0;
                link.renewed_on_receive = false;
                slot.latest_handshake = Some(now.wall);
            }
            drop(link);
            if wants.confirmed {
                self.abandon_initiation(id);
            }
            if wants.confirmed || wants.flush {
                self.flush(now, id);
            }
            if wants.handshake {
                self.send_initiation(now, id, false);
            }
            if !wants.any() {
                break;
            }
        }
        self.schedule(id);
    }

    fn schedule(&mut self, id: PeerId) {
        let jitter = self.jitter();
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let mut link = lock(&slot.peer.link);
        let retired = core::mem::take(&mut link.sessions.retired);
        match link.sessions.oldest() {
            Some(born) => link.timers.set(Reason::EraseKeys, born + ERASE_AFTER_TIME),
            None => link.timers.stop(Reason::EraseKeys),
        }
        link.jitter = jitter;
        let deadline = link.timers.next();
        link.scheduled = deadline.map_or(Instant::FAR_FUTURE, |(at, _)| at);
        drop(link);
        let before = core::mem::replace(&mut slot.deadline, deadline);
        if before != deadline {
            if let Some((at, reason)) = before {
                self.deadlines.remove(&(at, id, reason));
            }
            if let Some((at, reason)) = deadline {
                self.deadlines.insert((at, id, reason));
            }
        }
        for session in retired {
            self.path.sessions.remove(&session);
        }
    }

    pub(crate) fn jitter(&mut self) -> Duration {
        let range = MAX_JITTER.as_nanos() as u64;
        Duration::from_nanos((u64::from(self.random.number()) * range) >> 32)
    }

    pub(crate) fn abandon_initiation(&mut self, id: PeerId) {
        let initiation = self.peers.slot(id).and_then(|slot| slot.initiation.take());
        if let Some((index, _)) = initiation {
            self.pending.remove(&index);
        }
    }

    /// Takes a peer to the state it has on a device that is down.
    fn silence(&mut self, id: PeerId) {
        self.abandon_initiation(id);
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let mut link = lock(&slot.peer.link);
        link.up = false;
        let purged = link.staged.len() as u64;
        link.staged.clear();
        link.timers.stop_all();
        link.sessions.retire_if(|_| true);
        link.handshake_sent = None;
        link.attempts = 0;
        link.another_keepalive = false;
        link.renewed_on_receive = false;
        link.wants = crate::peer::Wants::default();
        drop(link);
        self.path.counters().add(Cause::StagedPurged, purged);
        self.schedule(id);
    }

    fn set_private_key(&mut self, now: Now, update: PrivateKeyUpdate) {
        let current = self.identity.as_ref().map(|i| &i.keys.private);
        if current == update.key.as_ref() {
            return;
        }
        self.identity = update.key.map(|private| {
            let keys = StaticKeys::new(self.crypto, private);
            Identity {
                checker: Checker::new(self.crypto, &keys.public),
                keys,
                floor: update.timestamp_floor,
                reserved: update.timestamp_floor,
            }
        });
        // Nobody is a peer of itself.
        let own = self.identity.as_ref().map(|i| i.keys.public);
        if let Some(id) = own.and_then(|key| self.peers.find(&key)) {
            let mut routes = RoutesEdit::new(&self.path);
            self.remove_peer(id, &mut routes);
            routes.commit(&self.path);
        }
        for id in self.peers.ids() {
            self.abandon_initiation(id);
            let Some(slot) = self.peers.slot(id) else {
                continue;
            };
            slot.static_static = None;
            slot.label_sent = None;
            let mut link = lock(&slot.peer.link);
            link.handshake_sent = None;
            link.timers.stop(Reason::Retransmit);
            // What was sent to the old key may still arrive; nothing is sent.
            if let Some(current) = &mut link.sessions.current {
                current.may_send = false;
            }
            let next = link.sessions.next.take();
            link.sessions.retired.extend(next);
            let keepalive = !link.persistent_keepalive.is_zero();
            drop(link);
            if keepalive {
                self.send_keepalive(now, id);
            } else {
                self.flush(now, id);
            }
            self.settle(now, id);
        }
    }

    /// Returns the peer and whether a keepalive is to be sent at once.
    fn update_peer(
        &mut self,
        update: PeerUpdate,
        routes: &mut RoutesEdit,
    ) -> Option<(PeerId, bool)> {
        let key = update.public_key;
        let known = self.peers.find(&key);
        if update.remove {
            if let Some(id) = known {
                self.remove_peer(id, routes);
            }
            return None;
        }
        let own = self.identity.as_ref().is_some_and(|i| i.keys.public == key);
        if own || (known.is_none() && update.update_only) {
            return None;
        }
        let id = known.unwrap_or_else(|| self.add_peer(key, routes));
        let up = self.up;
        let slot = self.peers.slot(id)?;
        if let Some(preshared_key) = update.preshared_key {
            slot.preshared_key = preshared_key;
        }
        let mut link = lock(&slot.peer.link);
        if let Some(endpoint) = update.endpoint {
            set_endpoint(&mut link, endpoint);
        }
        let mut keepalive = false;
        if let Some(seconds) = update.persistent_keepalive {
            keepalive = up && seconds > 0 && link.persistent_keepalive.is_zero();
            link.persistent_keepalive = Duration::from_secs(seconds.into());
            if seconds == 0 {
                link.timers.stop(Reason::PersistentKeepalive);
            }
        }
        drop(link);
        if update.replace_allowed_ips {
            routes.get().allowed_ips.remove_owner(id);
        }
        for change in update.allowed_ips {
            let table = &mut routes.get().allowed_ips;
            match change {
                AllowedIpChange::Add(prefix) => table.insert(prefix, id),
                AllowedIpChange::Remove(prefix) => table.remove(prefix, id),
            }
        }
        Some((id, keepalive))
    }

    fn add_peer(&mut self, key: PublicKey, routes: &mut RoutesEdit) -> PeerId {
        let id = self.peers.add(self.crypto, key);
        let up = self.up;
        if let Some(slot) = self.peers.slot(id) {
            lock(&slot.peer.link).up = up;
            let peers = &mut routes.get().peers;
            if peers.len() <= id.0 as usize {
                peers.resize(id.0 as usize + 1, None);
            }
            peers[id.0 as usize] = Some(Arc::clone(&slot.peer));
        }
        id
    }

    fn remove_peer(&mut self, id: PeerId, routes: &mut RoutesEdit) {
        self.silence(id);
        let routes = routes.get();
        routes.allowed_ips.remove_owner(id);
        if let Some(place) = routes.peers.get_mut(id.0 as usize) {
            *place = None;
        }
        let removed = self.peers.remove(id);
        // Added again, the peer still refuses labels that it has seen.
        let sent = removed.and_then(|slot| slot.label_sent);
        if let (Some(identity), Some(sent)) = (&mut self.identity, sent) {
            identity.floor = identity.floor.max(sent);
        }
    }
}

/// A change of the routes that is made on a copy and then put in place, so that
/// no packet sees half of it. Without a change there is no copy.
struct RoutesEdit {
    before: Arc<Routes>,
    after: Option<Box<Routes>>,
}

impl RoutesEdit {
    fn new(path: &DataPath) -> Self {
        Self {
            before: path.routes.load_full(),
            after: None,
        }
    }

    fn get(&mut self) -> &mut Routes {
        self.after
            .get_or_insert_with(|| Box::new(Routes::clone(&self.before)))
    }

    fn commit(self, path: &DataPath) {
        if let Some(routes) = self.after {
            path.routes.store(Arc::from(routes));
        }
    }
}

/// An IPv4 address in IPv6's clothes (`::ffff:192.0.2.1`) means the IPv4 one.
fn set_endpoint(link: &mut Link, remote: SocketAddr) {
    let remote = match (remote, remote.ip().to_canonical()) {
        (SocketAddr::V6(_), ip @ core::net::IpAddr::V4(_)) => SocketAddr::new(ip, remote.port()),
        _ => remote,
    };
    if link
        .endpoint
        .is_none_or(|endpoint| endpoint.remote != remote)
    {
        link.endpoint = Some(remote.into());
    }
}

fn clear_local(link: &mut Link) {
    if let Some(endpoint) = &mut link.endpoint {
        endpoint.local = None;
    }
}

//! The control half: timers, and what is sent without being asked. Handshakes
//! are in [`crate::handshake`], configuration in [`crate::configure`].

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use taupe_crypto::{Provider, TAG_LEN};
use thiserror::Error;

use crate::hybrid::Early;
use crate::key::{PqPrivateKey, PublicKey};
use crate::limits::{
    ERASE_AFTER_TIME, KEEPALIVE_TIMEOUT, MAX_HANDSHAKE_ATTEMPTS, MAX_JITTER, MAX_PEERS,
};
use crate::message::{DATA_HEADER_LEN, DATA_OVERHEAD};
use crate::path::{DataPath, DropReason, Wake};
use crate::peer::{Endpoint, Peer, PeerId, PeerState, Traffic};
use crate::ratelimit::{CookieLimiter, RateLimiter};
use crate::slots::{Identity, Peers};
use crate::time::{Instant, Now, Tai64N};
use crate::timer::Reason;
use crate::update::EndpointName;
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
    /// Remember, for as long as the private key is used, that handshake timestamps
    /// up to this one may have been sent with it, and give it back with
    /// [`crate::update::PrivateKeyUpdate::timestamp_floor`]. Must be durable before the next
    /// output is sent, or a crash together with a clock that went back could
    /// lock this device out of its peers.
    ReserveTimestamps {
        /// The public key of the device.
        public_key: PublicKey,
        /// The greatest timestamp that may be sent from now on.
        up_to: Tai64N,
    },
    /// Remember durably whether a peer has shaken hands in a post-quantum way, and say so with
    /// [`crate::update::PeerUpdate::pq_latched`] when the peer is added again: so that nobody
    /// leads it back to ordinary handshakes.
    Latch {
        /// The public key of the device.
        public_key: PublicKey,
        /// The peer.
        peer: PublicKey,
        /// Whether it is remembered, or forgotten.
        latched: bool,
    },
    /// Ask for the addresses of a peer that does not answer, and give them, or
    /// none, to [`Device::handle_addresses`] at any later time: the peer's name
    /// is not asked for again before.
    Resolve {
        /// The peer.
        public_key: PublicKey,
        /// Its endpoint's name.
        name: EndpointName,
    },
    /// Tell whoever uses the device, if they want to know.
    Notice(Notice),
}

/// What people want to know of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// It has not answered for [`crate::limits::NOTICE_AFTER`]. Told once, until it is heard.
    PeerUnreachable {
        /// The peer.
        public_key: PublicKey,
        /// Where initiations were sent to.
        endpoint: SocketAddr,
        /// Since the first of them.
        time: Duration,
    },
    /// After that: there is a session with it.
    PeerRecovered {
        /// The peer.
        public_key: PublicKey,
    },
}

/// Why an update was refused. Nothing of it has been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UpdateError {
    /// More than 2^20 peers.
    #[error("a device has at most {MAX_PEERS} peers; the update would make {0}")]
    TooManyPeers(usize),
}

/// How long before the notice that the interface is up its packets may come.
const EARLY: Duration = Duration::from_secs(1);

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
    pub(crate) pq_private_key: Option<PqPrivateKey>,
    pub(crate) peers: Peers,
    /// Which peer a handshake that waits for its response is with, by the local
    /// index it has.
    pub(crate) pending: BTreeMap<u32, PeerId>,
    /// Which peer a hybrid handshake is of that somebody has begun, by where it came from and
    /// the index it has there.
    pub(crate) begun_by_peers: BTreeMap<(SocketAddr, u32), PeerId>,
    pub(crate) early: Early,
    pub(crate) loaded: Option<Instant>,
    pub(crate) limiter: RateLimiter,
    pub(crate) cookie_limiter: CookieLimiter,
    pub(crate) outputs: VecDeque<Output>,
    /// The upper 24 bits of every index, where whoever uses the device has chosen them.
    pub(crate) index_prefix: Option<u32>,
    deadlines: BTreeSet<(Instant, PeerId, Reason)>,
}

impl Device {
    /// A device without key and peers, down. `wake` is called, from any thread,
    /// when [`Device::handle_pending_work`] has something to do.
    #[must_use]
    pub fn new(crypto: &'static Provider, random: Box<dyn Random + Send>, wake: Wake) -> Self {
        Self {
            crypto,
            random,
            path: Arc::new(DataPath::new(wake)),
            up: false,
            identity: None,
            pq_private_key: None,
            peers: Peers::default(),
            pending: BTreeMap::new(),
            begun_by_peers: BTreeMap::new(),
            early: Early::default(),
            loaded: None,
            limiter: RateLimiter::default(),
            cookie_limiter: CookieLimiter::default(),
            outputs: VecDeque::new(),
            index_prefix: None,
            deadlines: BTreeSet::new(),
        }
    }

    /// The device's public key, if it has a private one.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        self.identity.as_ref().map(|identity| identity.keys.public)
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
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            let mut state = lock(&entry.peer.state);
            state.up = true;
            // What is older was read when the interface had gone down.
            let early = state.staged_early.take();
            if early.is_some_and(|at| now.boot.since(at) > EARLY) {
                let purged = state.staged.len() as u64;
                state.staged.clear();
                self.path.counters().add(DropReason::StagedPurged, purged);
            }
            let keepalive = !state.persistent_keepalive.is_zero();
            drop(state);
            if keepalive {
                self.send_keepalive(now, id);
            } else {
                self.flush(now, id);
            }
            self.run_pending(now, id);
        }
    }

    /// Ends the device: everything is stopped and erased, and the timestamps that
    /// were reserved but not used are given back. Take [`Device::poll_output`]
    /// once more.
    pub fn close(&mut self) {
        self.set_down();
        if let Some(mut identity) = self.identity.take() {
            identity.release(&mut self.outputs);
        }
        self.pq_private_key = None;
    }

    /// Stops everything and erases all session and handshake keys.
    pub fn set_down(&mut self) {
        self.up = false;
        for id in self.peers.ids() {
            self.silence(id);
        }
    }

    /// Does what the way of a packet has asked for: after a wake-up.
    pub fn handle_pending_work(&mut self, now: Now) {
        for peer in self.path.work_queue.take() {
            let id = peer.id();
            // The number may be another peer's by now.
            let known = self
                .peers
                .entry(id)
                .is_some_and(|s| Arc::ptr_eq(&s.peer, &peer));
            if known {
                lock(&peer.state).notified = false;
                self.run_pending(now, id);
            }
        }
    }

    /// Whether [`Device::handle_pending_work`] has something to do.
    #[must_use]
    pub fn has_pending_work(&self) -> bool {
        !self.path.work_queue.is_empty()
    }

    /// Does what is due at `now`.
    pub fn handle_deadline(&mut self, now: Now) {
        while let Some((at, id, _)) = self.deadlines.first().copied() {
            if at > now.boot {
                break;
            }
            self.deadlines.pop_first();
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            entry.deadline = None;
            let peer = Arc::clone(&entry.peer);
            loop {
                let Some(reason) = lock(&peer.state).timers.expire(now.boot) else {
                    break;
                };
                self.handle_timer(now, id, reason);
            }
            self.run_pending(now, id);
        }
    }

    /// Forgets from which local address those peers are answered for whom `keep`
    /// does not hold: the system's addresses or routes have changed, and it
    /// chooses again.
    pub fn retain_local_addresses(
        &mut self,
        keep: impl Fn(&Endpoint, &crate::LocalAddress) -> bool,
    ) {
        for entry in self.peers.entries.iter().flatten() {
            let Some(endpoint) = entry.peer.endpoint() else {
                continue;
            };
            let stale = endpoint.local.is_some_and(|local| !keep(&endpoint, &local));
            let mut state = lock(&entry.peer.state);
            // It may have been heard from elsewhere meanwhile.
            if stale && state.endpoint == Some(endpoint) {
                clear_local(&mut state);
            }
        }
    }

    /// Forgets the local address of the peers at `endpoint`, after the system
    /// has refused to send from it.
    pub fn forget_local_address(&mut self, endpoint: &Endpoint) {
        for entry in self.peers.entries.iter().flatten() {
            if entry.peer.endpoint().as_ref() == Some(endpoint) {
                entry.peer.clear_local_address();
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
        let state = lock(&self.peers.entry(id)?.peer.state);
        let current = state.sessions.current.as_ref()?;
        Some(Arc::clone(&current.session))
    }

    /// Moves the counter that the current session with a peer uses next up to
    /// `next`, never down; for tests of the limits, which cannot be reached by
    /// sending.
    #[doc(hidden)]
    pub fn set_counter_for_test(&mut self, key: &PublicKey, next: u64) {
        let Some(entry) = self.peers.find(key).and_then(|id| self.peers.entry(id)) else {
            return;
        };
        if let Some(current) = &mut lock(&entry.peer.state).sessions.current {
            current.next_counter = current.next_counter.max(next);
        }
    }

    /// A peer by its key.
    pub fn peer(&mut self, key: &PublicKey) -> Option<Arc<Peer>> {
        let id = self.peers.find(key)?;
        Some(Arc::clone(&self.peers.entry(id)?.peer))
    }

    fn handle_timer(&mut self, now: Now, id: PeerId, reason: Reason) {
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let peer = Arc::clone(&entry.peer);
        let mut state = lock(&peer.state);
        match reason {
            // A response of this side came between: its Rekey-Timeout first.
            Reason::Retransmit if !state.may_send_initiation(now.boot) => {
                if let Some(at) = state.next_initiation() {
                    let at = at + state.jitter;
                    state.timers.set(Reason::Retransmit, at);
                }
            }
            Reason::Retransmit if state.attempts > MAX_HANDSHAKE_ATTEMPTS => {
                state.timers.stop(Reason::Keepalive);
                state.unanswered = None;
                let purged = state.staged.len() as u64;
                state.staged.clear();
                drop(state);
                self.path.counters().add(DropReason::StagedPurged, purged);
                if let Some(hybrid) = &mut entry.hybrid {
                    hybrid.begin_anew();
                }
                self.abandon_initiation(id);
            }
            Reason::Retransmit => {
                // What was sent in another network is not held against the peer.
                if !state.hurried {
                    state.attempts += 1;
                }
                // The route may be what is broken: let the system choose again.
                clear_local(&mut state);
                drop(state);
                self.send_initiation(now, id, true);
            }
            Reason::ResendParts => {
                drop(state);
                self.resend_parts(now, id);
            }
            Reason::Keepalive => {
                let another = core::mem::take(&mut state.another_keepalive);
                drop(state);
                self.send_keepalive(now, id);
                if another {
                    let at = now.boot + KEEPALIVE_TIMEOUT;
                    lock(&peer.state).timers.set(Reason::Keepalive, at);
                }
            }
            Reason::DeadPeer => {
                clear_local(&mut state);
                drop(state);
                self.send_initiation(now, id, false);
            }
            Reason::EraseKeys => {
                state
                    .sessions
                    .retire_if(|session| now.boot.since(session.born()) >= ERASE_AFTER_TIME);
                drop(state);
                self.forget_provisional(id, |it| it.age(now.boot) >= ERASE_AFTER_TIME);
            }
            Reason::PersistentKeepalive => {
                let at = now.boot + state.persistent_keepalive;
                if state.endpoint.is_some() && !state.persistent_keepalive.is_zero() {
                    state.timers.set(Reason::PersistentKeepalive, at);
                }
                drop(state);
                self.send_keepalive(now, id);
            }
        }
    }

    /// Sends what is staged, or an empty packet if nothing is.
    pub(crate) fn send_keepalive(&mut self, now: Now, id: PeerId) {
        if let Some(entry) = self.peers.entry(id) {
            let mut state = lock(&entry.peer.state);
            if state.up && state.staged.is_empty() {
                state.staged.push_back(crate::Staged {
                    packet: Vec::new(),
                    ecn: 0,
                });
            }
        }
        self.flush(now, id);
    }

    /// Sends what is staged as far as the session allows, and asks for a
    /// handshake for the rest.
    pub(crate) fn flush(&mut self, now: Now, id: PeerId) {
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let peer = Arc::clone(&entry.peer);
        loop {
            let mut state = lock(&peer.state);
            let (Some(endpoint), false) = (state.endpoint, state.staged.is_empty()) else {
                return;
            };
            let Some((session, counter)) = state.take_counters(now.boot, 1) else {
                state.want_handshake(now.boot);
                return;
            };
            let Some(staged) = state.staged.pop_front() else {
                return;
            };
            let bytes = (staged.packet.len() + DATA_OVERHEAD) as u64;
            let traffic = if staged.packet.is_empty() {
                Traffic::Other
            } else {
                Traffic::Data
            };
            state.sent(now.boot, bytes, traffic);
            drop(state);
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
    pub(crate) fn run_pending(&mut self, now: Now, id: PeerId) {
        loop {
            let Some(entry) = self.peers.entry(id) else {
                return;
            };
            let peer = Arc::clone(&entry.peer);
            let mut state = lock(&peer.state);
            let work = core::mem::take(&mut state.work);
            if work.confirmed.is_some() {
                state.timers.stop(Reason::Retransmit);
                state.timers.stop(Reason::ResendParts);
                state.attempts = 0;
                state.renewed_on_receive = false;
                entry.latest_handshake = Some(now.wall);
                if let Some(hybrid) = &mut entry.hybrid {
                    hybrid.begin_anew();
                }
                entry.heard(&mut self.outputs);
            }
            drop(state);
            if let Some(index) = work.confirmed {
                self.abandon_initiation(id);
                self.confirm_provisional(id, index);
            }
            if work.confirmed.is_some() || work.flush {
                self.flush(now, id);
            }
            if work.handshake {
                self.send_initiation(now, id, false);
            }
            if !work.any() {
                break;
            }
        }
        self.schedule(id);
    }

    fn schedule(&mut self, id: PeerId) {
        let jitter = self.jitter();
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let mut state = lock(&entry.peer.state);
        let retired = core::mem::take(&mut state.sessions.retired);
        let begun = entry.hybrid.as_ref().and_then(|hybrid| hybrid.oldest());
        match state.sessions.oldest().into_iter().chain(begun).min() {
            Some(born) => state.timers.set(Reason::EraseKeys, born + ERASE_AFTER_TIME),
            None => state.timers.stop(Reason::EraseKeys),
        }
        state.jitter = jitter;
        let deadline = state.timers.next();
        state.scheduled = deadline.map_or(Instant::FAR_FUTURE, |(at, _)| at);
        drop(state);
        let before = core::mem::replace(&mut entry.deadline, deadline);
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
        let entry = self.peers.entry(id);
        let handshakes = entry.and_then(|entry| entry.handshakes.as_mut());
        let initiation = handshakes.and_then(|handshakes| handshakes.initiation.take());
        if let Some((index, _)) = initiation {
            self.pending.remove(&index);
        }
    }

    /// Takes a peer to the state it has on a device that is down.
    pub(crate) fn silence(&mut self, id: PeerId) {
        self.abandon_initiation(id);
        self.forget_provisional(id, |_| true);
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let mut state = lock(&entry.peer.state);
        state.up = false;
        let purged = state.staged.len() as u64;
        state.staged.clear();
        state.staged_early = None;
        state.timers.stop_all();
        state.sessions.retire_if(|_| true);
        state.handshake_sent = None;
        state.hurried = false;
        state.unanswered = None;
        state.attempts = 0;
        state.another_keepalive = false;
        state.renewed_on_receive = false;
        state.work = crate::peer::PendingWork::default();
        drop(state);
        self.path.counters().add(DropReason::StagedPurged, purged);
        self.schedule(id);
    }
}

pub(crate) fn clear_local(state: &mut PeerState) {
    if let Some(endpoint) = &mut state.endpoint {
        endpoint.local = None;
    }
}

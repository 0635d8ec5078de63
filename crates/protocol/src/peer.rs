//! A peer as the way of a packet sees it: the sessions it sends with, where it
//! is reached, what waits for it, and its timers.
//!
//! All of it is under one lock that is taken once per batch and held for a few
//! instructions; never while anything is encrypted. What only handshakes need
//! lives in [`crate::device`].

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::key::PublicKey;
use crate::limits::{
    DEAD_PEER_TIMEOUT, HURRIED_REKEY_TIMEOUT, KEEPALIVE_TIMEOUT, MAX_STAGED_PACKETS,
    REJECT_AFTER_MESSAGES, REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME, REKEY_ON_RECEIVE, REKEY_TIMEOUT,
};
use crate::lock;
use crate::path::WorkQueue;
use crate::session::{Role, Session};
use crate::time::Instant;
use crate::timer::{Reason, Timers};

/// Where a peer is reached, and from which of our addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The peer's address and UDP port.
    pub remote: SocketAddr,
    /// The local address that the peer last sent to: answers leave from it.
    pub local: Option<LocalAddress>,
}

/// A local address and the interface a datagram came in by. Both are what the engine's sockets
/// have said of it; other callers can do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// The interface's index.
    pub interface: u32,
}

impl From<SocketAddr> for Endpoint {
    fn from(remote: SocketAddr) -> Self {
        Self {
            remote,
            local: None,
        }
    }
}

/// Names a peer within its device. The number is used again after the peer has
/// been removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub(crate) u32);

/// A peer, shared by the control loop and the way of a packet.
pub struct Peer {
    id: PeerId,
    public_key: PublicKey,
    pub(crate) state: Mutex<PeerState>,
}

impl Peer {
    pub(crate) fn new(id: PeerId, public_key: PublicKey) -> Self {
        Self {
            id,
            public_key,
            state: Mutex::new(PeerState::default()),
        }
    }

    /// Which peer of the device this is.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// The peer's static public key.
    #[must_use]
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Where the peer is reached.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        lock(&self.state).endpoint
    }

    /// Forgets from which local address the peer is answered, after the system
    /// has refused it; the routing table chooses again.
    pub fn clear_local_address(&self) {
        if let Some(endpoint) = &mut lock(&self.state).endpoint {
            endpoint.local = None;
        }
    }

    /// Whether there is a session that a packet could be sent with now.
    #[must_use]
    pub fn has_session(&self, now: Instant) -> bool {
        lock(&self.state).can_send(now)
    }

    /// The session that packets are sent with, or the last that was: it may be too old.
    #[must_use]
    pub fn session(&self) -> Option<Arc<Session>> {
        let state = lock(&self.state);
        let current = state.sessions.current.as_ref()?;
        Some(Arc::clone(&current.session))
    }

    /// Whether this side has sent initiations that are not answered, and still tries.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        lock(&self.state).unanswered.is_some()
    }

    /// Whether `index` is what the peer calls a session that this side may still
    /// send with.
    #[must_use]
    pub fn knows_index(&self, index: u32) -> bool {
        let state = lock(&self.state);
        let current = state.sessions.current.as_ref();
        let current = current.map(|current| &current.session);
        [current, state.sessions.previous.as_ref()]
            .into_iter()
            .flatten()
            .any(|session| session.remote_index() == index)
    }

    /// Reserves counters for `messages` messages of `bytes` in all, to be
    /// sealed at once, and does what the timers and the age of the session
    /// demand of a send.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        work_queue: &WorkQueue,
        now: Instant,
        messages: u64,
        bytes: u64,
    ) -> Outbound {
        let mut state = lock(&self.state);
        let Some(endpoint) = state.endpoint else {
            return Outbound::NoEndpoint;
        };
        if !state.up || !state.staged.is_empty() {
            return Outbound::Stage;
        }
        let Some((session, first)) = state.take_counters(now, messages) else {
            return Outbound::Stage;
        };
        state.sent(now, bytes, Traffic::Data);
        self.release(work_queue, state);
        Outbound::Send(Reservation {
            session,
            first,
            messages,
            endpoint,
        })
    }

    /// Keeps packets until there is a session, and asks for one. Returns how
    /// many older packets had to go.
    pub(crate) fn stage(
        self: &Arc<Self>,
        work_queue: &WorkQueue,
        now: Instant,
        packets: Vec<Staged>,
    ) -> u64 {
        let mut state = lock(&self.state);
        if state.removed {
            return packets.len() as u64;
        }
        let mut dropped = 0;
        for packet in packets {
            state.staged.push_back(packet);
            if state.staged.len() > MAX_STAGED_PACKETS {
                state.staged.pop_front();
                dropped += 1;
            }
        }
        // The system lets packets out as soon as the interface is up, which
        // the control loop learns a moment later: they leave then.
        if !state.up {
            state.staged_early.get_or_insert(now);
            return dropped;
        }
        // A session may have come up since the packets were refused.
        if state.can_send(now) {
            state.work.flush = true;
        } else {
            state.want_handshake(now);
        }
        self.release(work_queue, state);
        dropped
    }

    /// Accounts for packets of `session` that have been opened. `false` if the
    /// peer is gone or the device is down, and the packets must be dropped.
    pub(crate) fn receive(
        self: &Arc<Self>,
        work_queue: &WorkQueue,
        now: Instant,
        session: &Arc<Session>,
        from: Endpoint,
        received: Received,
    ) -> bool {
        let mut state = lock(&self.state);
        if !state.up {
            return false;
        }
        if state.sessions.confirm(session) {
            state.work.confirmed = Some(session.local_index());
        }
        state.endpoint = Some(from);
        state.received(now, received.bytes);
        if received.data {
            state.data_received(now);
        }
        state.renew_on_receive(now);
        self.release(work_queue, state);
        true
    }

    /// Unlocks, and tells the control loop if there is something for it.
    pub(crate) fn release(
        self: &Arc<Self>,
        work_queue: &WorkQueue,
        mut state: std::sync::MutexGuard<'_, PeerState>,
    ) {
        let sooner = state.timers.soonest() < state.scheduled;
        if (state.work.any() || sooner) && !state.notified {
            state.notified = true;
            drop(state);
            work_queue.post(Arc::clone(self));
        }
    }
}

/// Whether a batch may be sent.
pub enum Outbound {
    /// It may: seal and send it.
    Send(Reservation),
    /// There is no usable session: stage the packets.
    Stage,
    /// It is not known where the peer is reached: answer the inner sender with
    /// an ICMP error.
    NoEndpoint,
}

/// Counters that belong to one batch. Dropped unused, they are never used.
pub struct Reservation {
    session: Arc<Session>,
    first: u64,
    messages: u64,
    endpoint: Endpoint,
}

impl Reservation {
    /// Where the batch goes.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Seals the batch in place. It is cut every `stride` bytes; each message is
    /// [`crate::message::DATA_HEADER_LEN`] bytes of room, the padded packet, and
    /// room for the tag. Messages beyond those reserved are left as they are:
    /// the returned number tells how many bytes are ready.
    pub fn seal(self, batch: &mut [u8], stride: usize) -> usize {
        let reserved = usize::try_from(self.messages)
            .unwrap_or(usize::MAX)
            .saturating_mul(stride);
        let ready = batch.len().min(reserved);
        self.session.seal(self.first, &mut batch[..ready], stride);
        ready
    }

    /// Seals messages in place, each as [`Self::seal`] has it. Those beyond the
    /// reserved number are left as they are.
    pub fn seal_each<'a>(self, messages: impl Iterator<Item = &'a mut [u8]>) {
        let reserved = usize::try_from(self.messages).unwrap_or(usize::MAX);
        self.session.seal_each(self.first, messages.take(reserved));
    }
}

/// A packet that waits for a session.
pub struct Staged {
    /// The inner packet, padded ([`crate::padded_len`]), or nothing for a keepalive.
    pub packet: Vec<u8>,
    /// ECN bits for the outer header (RFC 6040).
    pub ecn: u8,
}

/// What the packets of one batch add up to.
#[derive(Default)]
pub(crate) struct Received {
    /// Of messages, with their headers.
    pub(crate) bytes: u64,
    /// Whether any was more than a keepalive.
    pub(crate) data: bool,
}

/// What a sent message is to the timers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// A packet: an answer is expected.
    Data,
    /// A keepalive or a handshake message.
    Other,
}

/// What the way of a packet asks of the control loop.
#[derive(Clone, Copy, Default)]
pub(crate) struct PendingWork {
    pub(crate) handshake: bool,
    /// A session of the other side's making has been used: which, by its index here.
    pub(crate) confirmed: Option<u32>,
    pub(crate) flush: bool,
}

impl PendingWork {
    pub(crate) fn any(self) -> bool {
        self.handshake || self.confirmed.is_some() || self.flush
    }
}

/// What the two sides share, under the peer's lock.
pub(crate) struct PeerState {
    /// The device is up and the peer has not been removed.
    pub(crate) up: bool,
    pub(crate) removed: bool,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) sessions: Sessions,
    pub(crate) staged: VecDeque<Staged>,
    /// When the first packet was staged before the link's notice came.
    pub(crate) staged_early: Option<Instant>,
    pub(crate) timers: Timers,
    /// How late the next timer-fired handshake is; chosen by the control loop.
    pub(crate) jitter: Duration,
    pub(crate) persistent_keepalive: Duration,
    /// Data was received while a keepalive was already due.
    pub(crate) another_keepalive: bool,
    /// The current session has been renewed because of its age on receive.
    pub(crate) renewed_on_receive: bool,
    pub(crate) attempts: u32,
    /// When the last handshake message was sent, unless that no longer counts.
    pub(crate) handshake_sent: Option<Instant>,
    /// The network has changed since, so that it need not wait as long for the next.
    pub(crate) hurried: bool,
    /// When the first of the initiations was sent since which nothing has been
    /// heard, as long as this side tries.
    pub(crate) unanswered: Option<Instant>,
    /// How many of them there have been.
    pub(crate) initiations: u32,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
    /// When the control loop will look at the timers.
    pub(crate) scheduled: Instant,
    pub(crate) work: PendingWork,
    /// The control loop has been told and has not looked yet.
    pub(crate) notified: bool,
}

impl Default for PeerState {
    fn default() -> Self {
        Self {
            up: false,
            removed: false,
            endpoint: None,
            sessions: Sessions::default(),
            staged: VecDeque::new(),
            staged_early: None,
            timers: Timers::default(),
            jitter: Duration::ZERO,
            persistent_keepalive: Duration::ZERO,
            another_keepalive: false,
            renewed_on_receive: false,
            attempts: 0,
            handshake_sent: None,
            hurried: false,
            unanswered: None,
            initiations: 0,
            tx_bytes: 0,
            rx_bytes: 0,
            scheduled: Instant::FAR_FUTURE,
            work: PendingWork::default(),
            notified: false,
        }
    }
}

impl PeerState {
    /// Whether the current session may send a packet.
    pub(crate) fn can_send(&self, now: Instant) -> bool {
        self.sessions.sending(now).is_some()
    }

    /// Takes `count` counters of the current session, and asks for its renewal
    /// when it is old or has sent much.
    pub(crate) fn take_counters(
        &mut self,
        now: Instant,
        count: u64,
    ) -> Option<(Arc<Session>, u64)> {
        self.sessions.sending(now)?;
        let current = self.sessions.current.as_mut()?;
        let first = current.next_counter;
        let next = first.checked_add(count)?;
        if next > REJECT_AFTER_MESSAGES {
            return None;
        }
        current.next_counter = next;
        let session = Arc::clone(&current.session);
        let old =
            session.role() == Role::Initiator && now.since(session.born()) >= REKEY_AFTER_TIME;
        if old || next > REKEY_AFTER_MESSAGES {
            self.want_handshake(now);
        }
        Some((session, first))
    }

    /// Asks for a handshake on behalf of user data: at once, or when
    /// Rekey-Timeout allows it.
    pub(crate) fn want_handshake(&mut self, now: Instant) {
        self.attempts = 0;
        if self.may_send_initiation(now) {
            self.work.handshake = true;
        } else {
            self.postpone_handshake();
        }
    }

    /// Sends an initiation when Rekey-Timeout allows it, unless one is under way
    /// and will be sent again then anyway.
    pub(crate) fn postpone_handshake(&mut self) {
        if let Some(at) = self.next_initiation() {
            let at = at + self.jitter;
            self.timers.start(Reason::Retransmit, at);
        }
    }

    /// Rekey-Timeout after the last handshake message.
    pub(crate) fn next_initiation(&self) -> Option<Instant> {
        let pause = if self.hurried {
            HURRIED_REKEY_TIMEOUT
        } else {
            REKEY_TIMEOUT
        };
        self.handshake_sent.map(|sent| sent + pause)
    }

    /// Rekey-Timeout: whether the last handshake message was long enough ago.
    pub(crate) fn may_send_initiation(&self, now: Instant) -> bool {
        self.next_initiation().is_none_or(|at| at <= now)
    }

    /// Accounts for messages that are being sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64, traffic: Traffic) {
        self.tx_bytes = self.tx_bytes.saturating_add(bytes);
        self.timers.stop(Reason::Keepalive);
        self.another_keepalive = false;
        if traffic == Traffic::Data {
            let at = now + DEAD_PEER_TIMEOUT + self.jitter;
            self.timers.start(Reason::DeadPeer, at);
        }
        self.traversed(now);
    }

    /// Accounts for authenticated messages of any kind.
    pub(crate) fn received(&mut self, now: Instant, bytes: u64) {
        self.rx_bytes = self.rx_bytes.saturating_add(bytes);
        self.timers.stop(Reason::DeadPeer);
        self.unanswered = None;
        self.traversed(now);
    }

    fn data_received(&mut self, now: Instant) {
        let at = now + KEEPALIVE_TIMEOUT;
        if !self.timers.start(Reason::Keepalive, at) {
            self.another_keepalive = true;
        }
    }

    /// A peer that only receives must renew a session too, before it dies.
    fn renew_on_receive(&mut self, now: Instant) {
        let old = self.sessions.current.as_ref().is_some_and(|current| {
            current.session.role() == Role::Initiator
                && now.since(current.session.born()) >= REKEY_ON_RECEIVE
        });
        if old && !self.renewed_on_receive {
            self.renewed_on_receive = true;
            self.want_handshake(now);
        }
    }

    fn traversed(&mut self, now: Instant) {
        if !self.persistent_keepalive.is_zero() {
            let at = now + self.persistent_keepalive;
            self.timers.set(Reason::PersistentKeepalive, at);
        }
    }
}

/// The sessions of a peer (whitepaper §6.3). Only the current one sends.
#[derive(Default)]
pub(crate) struct Sessions {
    /// Receives what was still on the way when the current one came up.
    pub(crate) previous: Option<Arc<Session>>,
    pub(crate) current: Option<Current>,
    /// Made by a response of this side; becomes current when the initiator has
    /// sent something with it.
    pub(crate) next: Option<Arc<Session>>,
    /// Made by hybrid responses of this side to who may not be the peer: one becomes current
    /// when the initiator has sent something with it, and counts for nothing before.
    pub(crate) provisional: Vec<Arc<Session>>,
    /// Sessions that have lost their place: the control loop takes them out of
    /// the table.
    pub(crate) retired: Vec<Arc<Session>>,
}

/// The session that sends, with its counter, which exists nowhere else.
pub(crate) struct Current {
    pub(crate) session: Arc<Session>,
    pub(crate) next_counter: u64,
    /// Cleared when the device's private key has changed: it still receives.
    pub(crate) may_send: bool,
}

impl Current {
    fn new(session: Arc<Session>) -> Self {
        Self {
            session,
            next_counter: 0,
            may_send: true,
        }
    }
}

impl Sessions {
    fn sending(&self, now: Instant) -> Option<&Current> {
        let current = self.current.as_ref()?;
        let usable = current.may_send
            && current.session.may_send(now)
            && current.next_counter < REJECT_AFTER_MESSAGES;
        usable.then_some(current)
    }

    /// Puts a session that this side initiated in place: it may send at once.
    pub(crate) fn install_initiated(&mut self, session: Arc<Session>) {
        let current = self.current.take().map(|current| current.session);
        // A session that waits for confirmation is newer than the current one.
        let (newer, older) = match self.next.take() {
            Some(next) => (Some(next), current),
            None => (current, None),
        };
        self.retired.extend(older);
        self.retired.extend(self.previous.take());
        self.previous = newer;
        self.current = Some(Current::new(session));
    }

    /// Puts a session that the other side initiated in place, unconfirmed.
    pub(crate) fn install_responded(&mut self, session: Arc<Session>) {
        self.retired.extend(self.previous.take());
        self.retired.extend(self.next.replace(session));
    }

    /// Notes that a packet of `session` has been received. Whether that
    /// confirmed it.
    fn confirm(&mut self, session: &Arc<Session>) -> bool {
        let provisional = &mut self.provisional;
        if let Some(found) = provisional.iter().position(|it| Arc::ptr_eq(it, session)) {
            let session = provisional.swap_remove(found);
            // Nobody goes back to one that was begun before.
            let older = provisional.extract_if(.., |it| it.born() < session.born());
            self.retired.extend(older);
            self.retired.extend(self.next.replace(session));
        }
        match self.next.take() {
            Some(next) if Arc::ptr_eq(&next, session) => {
                self.retired.extend(self.previous.take());
                self.previous = self.current.take().map(|current| current.session);
                self.current = Some(Current::new(next));
                true
            }
            other => {
                self.next = other;
                false
            }
        }
    }

    /// Retires every session for which `gone` holds.
    pub(crate) fn retire_if(&mut self, gone: impl Fn(&Session) -> bool) {
        self.retired.extend(self.previous.take_if(|s| gone(s)));
        self.retired.extend(self.next.take_if(|s| gone(s)));
        let provisional = self.provisional.extract_if(.., |s| gone(s));
        self.retired.extend(provisional);
        let current = self.current.take_if(|c| gone(&c.session));
        self.retired.extend(current.map(|c| c.session));
    }

    /// Retires the provisional session that this side calls `index`.
    pub(crate) fn retire_provisional(&mut self, index: u32) {
        let provisional = &mut self.provisional;
        let gone = provisional.extract_if(.., |session| session.local_index() == index);
        self.retired.extend(gone);
    }

    /// When the oldest session was born.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let current = self.current.as_ref().map(|c| &c.session);
        [self.previous.as_ref(), current, self.next.as_ref()]
            .into_iter()
            .flatten()
            .chain(&self.provisional)
            .map(|session| session.born())
            .min()
    }
}

//! State of a peer that the control loop and the data path share, under the lock of the peer.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::limits::{
    DEAD_PEER_TIMEOUT, HURRIED_REKEY_TIMEOUT, KEEPALIVE_TIMEOUT, REJECT_AFTER_MESSAGES,
    REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME, REKEY_ON_RECEIVE, REKEY_TIMEOUT,
};
use crate::peer::{Reason, Role, Session, Sessions, Staged, Timers};
use crate::time::Instant;

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

    pub(super) fn data_received(&mut self, now: Instant) {
        let at = now + KEEPALIVE_TIMEOUT;
        if !self.timers.start(Reason::Keepalive, at) {
            self.another_keepalive = true;
        }
    }

    /// A peer that only receives must renew a session too, before it dies.
    pub(super) fn renew_on_receive(&mut self, now: Instant) {
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

pub(crate) fn clear_local(state: &mut PeerState) {
    if let Some(endpoint) = &mut state.endpoint {
        endpoint.local = None;
    }
}

/// An IPv4 address in IPv6's clothes (`::ffff:192.0.2.1`) means the IPv4 one.
pub(crate) fn set_endpoint(state: &mut PeerState, remote: SocketAddr) -> Endpoint {
    let remote = match (remote, remote.ip().to_canonical()) {
        (SocketAddr::V6(_), ip @ IpAddr::V4(_)) => SocketAddr::new(ip, remote.port()),
        _ => remote,
    };
    if let Some(endpoint) = state.endpoint
        && endpoint.remote == remote
    {
        return endpoint;
    }
    state.unanswered = None;
    *state.endpoint.insert(remote.into())
}

/// Moves a silent peer's endpoint: the new address is as silent as the old one until it is heard.
pub(crate) fn move_endpoint(state: &mut PeerState, remote: SocketAddr) -> Endpoint {
    let since = state.unanswered;
    let endpoint = set_endpoint(state, remote);
    state.unanswered = since;
    endpoint
}

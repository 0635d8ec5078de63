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

/// State of a peer that the control loop and the data path share, under the peer's lock.
#[derive(Default)]
pub(crate) struct PeerState {
    /// The device is up and the peer has not been removed.
    pub(crate) up: bool,
    pub(crate) removed: bool,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) sessions: Sessions,
    pub(crate) staging: Staging,
    pub(crate) initiation: InitiationState,
    pub(crate) keepalive: Keepalive,
    pub(crate) timers: Timers,
    pub(crate) statistics: Statistics,
    pub(crate) control: Control,
}

/// Packets that wait for a session.
#[derive(Default)]
pub(crate) struct Staging {
    pub(crate) packets: VecDeque<Staged>,
    /// The time of the first packet that was staged before the notice that the device is up.
    pub(crate) early: Option<Instant>,
}

/// Progress of this side's initiations.
#[derive(Default)]
pub(crate) struct InitiationState {
    /// Retransmissions of the initiation under way.
    pub(crate) attempts: u32,
    /// The time of the last handshake message, unless that no longer counts.
    pub(crate) last_sent: Option<Instant>,
    /// The network has changed since, so that the next one need not wait as long.
    pub(crate) hurried: bool,
    /// The time of the first of the initiations since which nothing has been heard, as long as
    /// this side tries.
    pub(crate) unanswered: Option<Instant>,
    /// The number of those initiations.
    pub(crate) count: u32,
}

/// Keepalives of this side.
#[derive(Default)]
pub(crate) struct Keepalive {
    /// Interval of persistent keepalives; zero for none.
    pub(crate) interval: Duration,
    /// Data was received while a keepalive was already due.
    pub(crate) another: bool,
}

/// Bytes that have been sent and received, with headers.
#[derive(Default)]
pub(crate) struct Statistics {
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
}

/// Messages between the data path and the control loop.
pub(crate) struct Control {
    pub(crate) work: PendingWork,
    /// The peer is in the work queue.
    pub(crate) notified: bool,
    /// The time at which the control loop will look at the timers.
    pub(crate) scheduled: Instant,
    /// Delay of the next handshake that a timer starts; chosen by the control loop.
    pub(crate) jitter: Duration,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            work: PendingWork::default(),
            notified: false,
            scheduled: Instant::FAR_FUTURE,
            jitter: Duration::ZERO,
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
        self.initiation.attempts = 0;
        if self.may_send_initiation(now) {
            self.control.work.handshake = true;
        } else {
            self.postpone_handshake();
        }
    }

    /// Sends an initiation when Rekey-Timeout allows it, unless one is under way
    /// and will be sent again then anyway.
    pub(crate) fn postpone_handshake(&mut self) {
        if let Some(at) = self.next_initiation() {
            let at = at + self.control.jitter;
            self.timers.start(Reason::Retransmit, at);
        }
    }

    /// Rekey-Timeout after the last handshake message.
    pub(crate) fn next_initiation(&self) -> Option<Instant> {
        let pause = if self.initiation.hurried {
            HURRIED_REKEY_TIMEOUT
        } else {
            REKEY_TIMEOUT
        };
        self.initiation.last_sent.map(|sent| sent + pause)
    }

    /// Rekey-Timeout: whether the last handshake message was long enough ago.
    pub(crate) fn may_send_initiation(&self, now: Instant) -> bool {
        self.next_initiation().is_none_or(|at| at <= now)
    }

    /// Accounts for messages that are being sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64, traffic: Traffic) {
        self.statistics.tx_bytes = self.statistics.tx_bytes.saturating_add(bytes);
        self.timers.stop(Reason::Keepalive);
        self.keepalive.another = false;
        if traffic == Traffic::Data {
            let at = now + DEAD_PEER_TIMEOUT + self.control.jitter;
            self.timers.start(Reason::DeadPeer, at);
        }
        self.traversed(now);
    }

    /// Accounts for authenticated messages of any kind.
    pub(crate) fn received(&mut self, now: Instant, bytes: u64) {
        self.statistics.rx_bytes = self.statistics.rx_bytes.saturating_add(bytes);
        self.timers.stop(Reason::DeadPeer);
        self.initiation.unanswered = None;
        self.traversed(now);
    }

    pub(super) fn data_received(&mut self, now: Instant) {
        let at = now + KEEPALIVE_TIMEOUT;
        if !self.timers.start(Reason::Keepalive, at) {
            self.keepalive.another = true;
        }
    }

    /// A peer that only receives must renew a session too, before it dies.
    pub(super) fn renew_on_receive(&mut self, now: Instant) {
        let old = self.sessions.current.as_ref().is_some_and(|current| {
            current.session.role() == Role::Initiator
                && now.since(current.session.born()) >= REKEY_ON_RECEIVE
        });
        if old && !self.sessions.renewed_on_receive {
            self.sessions.renewed_on_receive = true;
            self.want_handshake(now);
        }
    }

    fn traversed(&mut self, now: Instant) {
        if !self.keepalive.interval.is_zero() {
            let at = now + self.keepalive.interval;
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
    state.initiation.unanswered = None;
    *state.endpoint.insert(remote.into())
}

/// Moves a silent peer's endpoint: the new address is as silent as the old one until it is heard.
pub(crate) fn move_endpoint(state: &mut PeerState, remote: SocketAddr) -> Endpoint {
    let since = state.initiation.unanswered;
    let endpoint = set_endpoint(state, remote);
    state.initiation.unanswered = since;
    endpoint
}

//! State of a peer that the control loop and the data path share, under the peer's lock.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::lanes::{LaneId, Run};
use crate::limits::{
    DEAD_PEER_TIMEOUT, KEEPALIVE_TIMEOUT, NETWORK_CHANGE_REKEY_TIMEOUT, REKEY_AFTER_MESSAGES,
    REKEY_AFTER_TIME, REKEY_ON_RECEIVE, REKEY_TIMEOUT,
};
use crate::peer::sessions::Current;
use crate::peer::{PeerLanes, Received, Role, Session, Sessions, Staged, Timer, Timers};
use crate::time::Instant;

#[derive(Default)]
pub(crate) struct PeerState {
    /// True if the device is up and the peer has not been removed.
    pub(crate) up: bool,
    pub(crate) removed: bool,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) sessions: Sessions,
    pub(crate) staging: Staging,
    pub(crate) initiation: InitiationState,
    pub(crate) keepalive: Keepalive,
    pub(crate) lanes: PeerLanes,
    pub(crate) timers: Timers,
    pub(crate) statistics: Statistics,
    pub(crate) control: Control,
}

/// Packets that wait for a session.
#[derive(Default)]
pub(crate) struct Staging {
    pub(crate) packets: VecDeque<Staged>,
    /// Time of the first packet staged before the notice that the device is up.
    pub(crate) staged_before_up: Option<Instant>,
}

/// Progress of this side's initiations.
#[derive(Default)]
pub(crate) struct InitiationState {
    /// Retransmissions of the current initiation.
    pub(crate) attempts: u32,
    /// Time of the last handshake message; `None` if it no longer delays the next one.
    pub(crate) last_sent: Option<Instant>,
    /// Set after a change of network: the next initiation waits only [`NETWORK_CHANGE_REKEY_TIMEOUT`].
    pub(crate) network_changed: bool,
    /// Time of the first initiation without an answer. `None` after an authenticated message, a
    /// new endpoint, or the end of the attempts.
    pub(crate) unanswered: Option<Instant>,
    /// Number of initiations since `unanswered`.
    pub(crate) count: u32,
}

/// Keepalives that this side sends.
#[derive(Default)]
pub(crate) struct Keepalive {
    /// Interval of persistent keepalives; zero for none.
    pub(crate) interval: Duration,
    /// Data was received while a keepalive was already due.
    pub(crate) another_due: bool,
}

/// Bytes of messages sent and received, with headers.
#[derive(Default)]
pub(crate) struct Statistics {
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
}

/// Requests of the data path to the control loop, and the control loop's schedule.
pub(crate) struct Control {
    pub(crate) work: PendingWork,
    /// Set while the peer is in the work queue.
    pub(crate) notified: bool,
    /// Time at which the control loop will handle the timers.
    pub(crate) scheduled: Instant,
    /// Random delay of the next handshake that a timer starts; set by the control loop.
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
    /// Checks whether the current session may send.
    pub(crate) fn can_send(&self, now: Instant) -> bool {
        self.sessions.sending(now).is_some()
    }

    /// Reserves `count` counters of the current session for a lane. Requests a new session if this one has
    /// sent Rekey-After-Messages, or if this side initiated it and it has reached Rekey-After-Time
    /// (whitepaper §6.2).
    pub(crate) fn take_counters(
        &mut self,
        now: Instant,
        lane: LaneId,
        count: u64,
    ) -> Option<(Arc<Session>, Run)> {
        self.sessions.sending(now)?;
        let current = self.sessions.current.as_mut()?;
        let reserved = current.counters.reserve(lane, count)?;
        let session = Arc::clone(&current.session);
        let old =
            session.role() == Role::Initiator && now.since(session.born()) >= REKEY_AFTER_TIME;
        if old || reserved.end > REKEY_AFTER_MESSAGES {
            self.request_handshake(now);
        }
        Some((session, reserved.run))
    }

    /// Requests a handshake: at once, or when Rekey-Timeout allows it.
    pub(crate) fn request_handshake(&mut self, now: Instant) {
        self.initiation.attempts = 0;
        if self.may_send_initiation(now) {
            self.control.work.handshake = true;
        } else {
            self.postpone_handshake();
        }
    }

    /// Schedules an initiation for when Rekey-Timeout allows it. Does nothing if a retransmission
    /// is already scheduled.
    pub(crate) fn postpone_handshake(&mut self) {
        if let Some(at) = self.next_initiation() {
            let at = at + self.control.jitter;
            self.timers.start(Timer::Retransmit, at);
        }
    }

    /// Returns the earliest time of the next initiation: Rekey-Timeout after the last handshake
    /// message.
    pub(crate) fn next_initiation(&self) -> Option<Instant> {
        let pause = if self.initiation.network_changed {
            NETWORK_CHANGE_REKEY_TIMEOUT
        } else {
            REKEY_TIMEOUT
        };
        self.initiation.last_sent.map(|sent| sent + pause)
    }

    /// Checks whether Rekey-Timeout has passed since the last handshake message (whitepaper §6.1).
    pub(crate) fn may_send_initiation(&self, now: Instant) -> bool {
        self.next_initiation().is_none_or(|at| at <= now)
    }

    /// Accounts for messages being sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64, traffic: Traffic) {
        self.statistics.tx_bytes = self.statistics.tx_bytes.saturating_add(bytes);
        self.timers.stop(Timer::Keepalive);
        self.keepalive.another_due = false;
        if traffic == Traffic::Data {
            let at = now + DEAD_PEER_TIMEOUT + self.control.jitter;
            self.timers.start(Timer::DeadPeer, at);
        }
        self.restart_persistent_keepalive(now);
    }

    /// Accounts for authenticated messages of any kind.
    pub(crate) fn received(&mut self, now: Instant, bytes: u64) {
        self.statistics.rx_bytes = self.statistics.rx_bytes.saturating_add(bytes);
        self.timers.stop(Timer::DeadPeer);
        self.initiation.unanswered = None;
        self.restart_persistent_keepalive(now);
    }

    /// Starts the timer of the passive keepalive (whitepaper §6.5).
    pub(super) fn data_received(&mut self, now: Instant) {
        let at = now + KEEPALIVE_TIMEOUT;
        if !self.timers.start(Timer::Keepalive, at) {
            self.keepalive.another_due = true;
        }
    }

    /// Requests a new session when the current one is close to Reject-After-Time, so that a peer
    /// that only receives does not lose its session (whitepaper §6.2).
    pub(super) fn renew_on_receive(&mut self, now: Instant) {
        let old = self.sessions.current.as_ref().is_some_and(|current| {
            current.session.role() == Role::Initiator
                && now.since(current.session.born()) >= REKEY_ON_RECEIVE
        });
        if old && !self.sessions.renewed_on_receive {
            self.sessions.renewed_on_receive = true;
            self.request_handshake(now);
        }
    }

    /// Requests a new session if the current one is received over the wrong number of lanes.
    pub(super) fn check_lanes(
        &mut self,
        now: Instant,
        session: &Arc<Session>,
        received: &Received,
    ) {
        let is_current = |current: &Current| Arc::ptr_eq(&current.session, session);
        let is_current = self.sessions.current.as_ref().is_some_and(is_current);
        let mut renew = is_current && self.lanes.needs_renewal(received.bytes);
        if received.spread > 0 {
            renew |= (self.lanes).is_misplaced(now, received.spread, received.misplaced);
        }
        if renew {
            self.request_handshake(now);
        }
    }

    /// Restarts the timer of persistent keepalives after any authenticated message in either
    /// direction.
    fn restart_persistent_keepalive(&mut self, now: Instant) {
        if !self.keepalive.interval.is_zero() {
            let at = now + self.keepalive.interval;
            self.timers.set(Timer::PersistentKeepalive, at);
        }
    }
}

/// Kind of a sent message, as far as the timers distinguish it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// A packet: an answer is expected.
    Data,
    /// A keepalive or a handshake message.
    Other,
}

/// Requests of the data path to the control loop.
#[derive(Clone, Copy, Default)]
pub(crate) struct PendingWork {
    pub(crate) handshake: bool,
    /// Local index of a session made by a response of this side that a packet has confirmed.
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

/// Sets the endpoint. An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) is stored as IPv4.
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

/// Moves the endpoint of a silent peer. The silence continues until the peer answers.
pub(crate) fn move_endpoint(state: &mut PeerState, remote: SocketAddr) -> Endpoint {
    let since = state.initiation.unanswered;
    let endpoint = set_endpoint(state, remote);
    state.initiation.unanswered = since;
    endpoint
}

//! Snapshots of all state of a peer that a message may change, for tests and simulation. Two
//! snapshots are equal if nothing has happened in between.

use core::time::Duration;
use std::sync::Arc;

use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::lock;
use crate::peer::{Reason, Timers};
use crate::time::{Instant, Tai64N};

/// State of a peer at one point in time.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerSnapshot {
    /// The peer's address.
    pub endpoint: Option<Endpoint>,
    /// Previous, current and next session: the local index, and the greatest counter received
    /// plus one.
    pub sessions: [Option<(u32, u64)>; 3],
    /// Next counter of the current session.
    pub next_counter: Option<u64>,
    /// Packets that wait for a session.
    pub staged: usize,
    /// Retransmissions of the current initiation.
    pub attempts: u32,
    /// Local index of the initiation that waits for a response.
    pub pending: Option<u32>,
    timers: Timers,
    another_keepalive: bool,
    renewed_on_receive: bool,
    handshake_sent: Option<Instant>,
    unanswered: Option<Instant>,
    /// Bytes sent, including handshakes.
    pub tx_bytes: u64,
    rx_bytes: u64,
    timestamp_sent: Option<Tai64N>,
    timestamp_received: Option<Tai64N>,
    initiation_accepted: Option<Instant>,
    latest_handshake: Option<Duration>,
}

impl PeerSnapshot {
    /// Clears the only two values that a hybrid initiation may change before its session is
    /// confirmed: the bytes sent, and the time to erase unused keys.
    #[must_use]
    pub fn but_for_provisional(mut self) -> Self {
        self.tx_bytes = 0;
        self.timers.stop(Reason::EraseKeys);
        self
    }
}

impl Device {
    /// Returns the state of a peer; `None` if there is no such peer.
    #[doc(hidden)]
    pub fn snapshot(&mut self, key: &PublicKey) -> Option<PeerSnapshot> {
        let id = self.peers.find(key)?;
        let entry = self.peers.entry(id)?;
        let handshakes = entry.handshakes.as_ref();
        let state = lock(&entry.peer.state);
        let current = state.sessions.current.as_ref();
        let sessions = [
            state.sessions.previous.as_ref(),
            current.map(|current| &current.session),
            state.sessions.next.as_ref(),
        ];
        Some(PeerSnapshot {
            endpoint: state.endpoint,
            sessions: sessions.map(|s| s.map(|s| (s.local_index(), s.replay_next()))),
            next_counter: current.map(|current| current.next_counter),
            staged: state.staging.packets.len(),
            attempts: state.initiation.attempts,
            pending: handshakes.and_then(|h| Some(h.initiation.as_ref()?.0)),
            timers: state.timers,
            another_keepalive: state.keepalive.another,
            renewed_on_receive: state.sessions.renewed_on_receive,
            handshake_sent: state.initiation.last_sent,
            unanswered: state.initiation.unanswered,
            tx_bytes: state.statistics.tx_bytes,
            rx_bytes: state.statistics.rx_bytes,
            timestamp_sent: entry.timestamp_sent(),
            timestamp_received: handshakes.and_then(|h| h.timestamp_received),
            initiation_accepted: handshakes.and_then(|h| h.initiation_accepted),
            latest_handshake: entry.latest_handshake,
        })
    }

    /// Returns the number of hybrid handshakes begun by peers that wait for their second part or
    /// their confirmation.
    #[doc(hidden)]
    #[must_use]
    pub fn half_handshakes(&self) -> usize {
        self.core.begun_by_peers.len()
    }

    /// Returns the number of initiations that wait for a response.
    #[doc(hidden)]
    #[must_use]
    pub fn pending_handshakes(&self) -> usize {
        self.core.pending.len()
    }
}

impl Device {
    /// Returns the sessions that can receive; for tests and counting.
    #[doc(hidden)]
    #[must_use]
    pub fn sessions(&self) -> Vec<Arc<crate::Session>> {
        self.core.path.sessions.all()
    }

    /// Returns the current session with a peer; for tests.
    #[doc(hidden)]
    pub fn current_session(&mut self, key: &PublicKey) -> Option<Arc<crate::Session>> {
        let id = self.peers.find(key)?;
        let state = lock(&self.peers.entry(id)?.peer.state);
        let current = state.sessions.current.as_ref()?;
        Some(Arc::clone(&current.session))
    }

    /// Raises the next counter of the current session with a peer to `next`. For tests of the
    /// limits, which sending cannot reach.
    #[doc(hidden)]
    pub fn set_counter_for_test(&mut self, key: &PublicKey, next: u64) {
        let Some(entry) = self.peers.find(key).and_then(|id| self.peers.entry(id)) else {
            return;
        };
        if let Some(current) = &mut lock(&entry.peer.state).sessions.current {
            current.next_counter = current.next_counter.max(next);
        }
    }
}

//! Access to the state of a device for tests and simulation.

use core::time::Duration;
use std::sync::Arc;

use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::lock;
use crate::message::indices;
use crate::peer::{Pending, Timer, Timers};
use crate::time::{Instant, Tai64N};

/// All state of a peer that a message may change, at one point in time. Two snapshots are equal if
/// nothing has happened in between.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerSnapshot {
    /// The peer's address.
    pub endpoint: Option<Endpoint>,
    /// Previous, current and next session: the local index, and the greatest counter received
    /// plus one.
    pub sessions: [Option<(u32, u64)>; 3],
    /// Next counter of the current session. If its lanes have counters of their own, this is the
    /// greatest of them.
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
    pub fn without_provisional_effects(mut self) -> Self {
        self.tx_bytes = 0;
        self.timers.stop(Timer::EraseKeys);
        self
    }
}

impl Device {
    /// Returns the state of a peer; `None` if there is no such peer.
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
            next_counter: current.map(|current| current.counters.next()),
            staged: state.staging.packets.len(),
            attempts: state.initiation.attempts,
            pending: handshakes.and_then(|h| Some(h.initiation.as_ref()?.0)),
            timers: state.timers,
            another_keepalive: state.keepalive.another_due,
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
    #[must_use]
    pub fn provisional_handshakes(&self) -> usize {
        self.core.provisional_peers.len()
    }

    /// Returns the number of initiations that wait for a response.
    #[must_use]
    pub fn pending_handshakes(&self) -> usize {
        self.core.pending.len()
    }
}

impl Device {
    /// Returns the sessions that can receive.
    #[must_use]
    pub fn sessions(&self) -> Vec<Arc<crate::Session>> {
        self.core.path.sessions.all()
    }

    /// Returns the current session with a peer.
    pub fn current_session(&mut self, key: &PublicKey) -> Option<Arc<crate::Session>> {
        let id = self.peers.find(key)?;
        let state = lock(&self.peers.entry(id)?.peer.state);
        let current = state.sessions.current.as_ref()?;
        Some(Arc::clone(&current.session))
    }

    /// Raises the next counter of the current session with a peer to `next`. For tests of the
    /// limits, which sending cannot reach.
    pub fn set_counter_for_test(&mut self, key: &PublicKey, next: u64) {
        let Some(entry) = self.peers.find(key).and_then(|id| self.peers.entry(id)) else {
            return;
        };
        if let Some(current) = &mut lock(&entry.peer.state).sessions.current {
            current.counters.raise(next);
        }
    }

    /// Writes valid MACs into a part of a response, which otherwise only a responder that can
    /// open the initiation can do. For tests of the later checks.
    pub fn write_response_macs(&mut self, part: &mut [u8]) {
        let index = indices(part).map(|[_, receiver]| receiver);
        let id = index.and_then(|index| self.core.pending.get(&index).copied());
        let entry = id.and_then(|id| self.peers.entry(id));
        let handshakes = entry.and_then(|entry| entry.handshakes.as_ref());
        if let Some((_, Pending::Hybrid(initiation))) =
            handshakes.and_then(|it| it.initiation.as_ref())
        {
            initiation
                .initiator
                .write_response_macs(self.core.crypto, part);
        }
    }
}

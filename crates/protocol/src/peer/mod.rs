//! State of a peer that the data path uses: sessions, endpoint, waiting packets and timers.
//!
//! One lock protects all of it. The lock is taken once per batch, or twice if lanes send in turn
//! ([`send_order`]). It is held for a few instructions, and never during encryption.
//! [`crate::device`] has the state that only handshakes need.

mod endpoint_name;
mod entry;
// loom switches stacks, which the Windows runtime of a panic does not survive.
#[cfg(all(test, unix, target_arch = "x86_64"))]
mod lane_model;
mod lanes;
mod outbound;
pub mod replay;
mod send_order;
mod session;
mod sessions;
mod state;
mod timers;
mod windows;
mod work_queue;

use std::sync::{Arc, Mutex};

use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::lanes::LaneId;
use crate::limits::MAX_STAGED_PACKETS;
use crate::lock;
use crate::peer::send_order::lock_in_turn;
use crate::time::Instant;

pub(crate) use endpoint_name::NamedEndpoint;
pub(crate) use entry::{PeerEntry, Peers, Pending};
pub(crate) use lanes::PeerLanes;
pub use outbound::{Outbound, Reservation, Staged};
pub(crate) use session::{Agreed, CHUNK};
pub use session::{Role, Session};
pub(crate) use sessions::Sessions;
pub(crate) use state::{PeerState, PendingWork, Traffic, clear_local, move_endpoint, set_endpoint};
pub use timers::Timer;
pub(crate) use timers::Timers;
pub use work_queue::Wake;
pub(crate) use work_queue::WorkQueue;

/// Locks of the modules that the model of lanes compiles with loom's locks.
mod sync {
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

    pub(super) use crate::lock;
}

/// Number of a peer within its device. A number is reused after the peer has been removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub(crate) u32);

/// A peer, shared by the control loop and the data path.
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

    /// Returns the peer's number.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Returns the peer's static public key.
    #[must_use]
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Returns the peer's endpoint.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        lock(&self.state).endpoint
    }

    /// Removes the local address of the endpoint, after the system has refused it as a source;
    /// the routing table chooses again.
    pub fn clear_local_address(&self) {
        if let Some(endpoint) = &mut lock(&self.state).endpoint {
            endpoint.local = None;
        }
    }

    /// Checks whether there is a session that can send now.
    #[must_use]
    pub fn has_session(&self, now: Instant) -> bool {
        lock(&self.state).can_send(now)
    }

    /// Returns the session used for sending, even if it has expired.
    #[must_use]
    pub fn session(&self) -> Option<Arc<Session>> {
        let state = lock(&self.state);
        let current = state.sessions.current.as_ref()?;
        Some(Arc::clone(&current.session))
    }

    /// Checks whether initiations to the peer are unanswered and the handshake has not been given
    /// up.
    #[must_use]
    pub fn has_unanswered_initiation(&self) -> bool {
        lock(&self.state).initiation.unanswered.is_some()
    }

    /// Checks whether `index` is the peer's index of the current or previous session.
    #[must_use]
    pub fn has_remote_index(&self, index: u32) -> bool {
        let state = lock(&self.state);
        let current = state.sessions.current.as_ref();
        let current = current.map(|current| &current.session);
        [current, state.sessions.previous.as_ref()]
            .into_iter()
            .flatten()
            .any(|session| session.remote_index() == index)
    }

    /// Reserves counters of a lane for `messages` messages of `bytes` in total, which the caller
    /// seals at once. Updates timers, and requests a new session if the current one is old.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        work_queue: &WorkQueue,
        now: Instant,
        lane: LaneId,
        messages: u64,
        bytes: u64,
    ) -> Outbound {
        let (mut state, turn) = lock_in_turn(&self.state, |state| state.sessions.send_order());
        let Some(endpoint) = state.endpoint else {
            return Outbound::NoEndpoint;
        };
        if !state.up || !state.staging.packets.is_empty() {
            return Outbound::Stage;
        }
        let Some((session, counters)) = state.take_counters(now, lane, messages) else {
            return Outbound::Stage;
        };
        state.sent(now, bytes, Traffic::Data);
        self.unlock_and_notify(work_queue, state);
        Outbound::Send(Reservation {
            session,
            counters,
            messages,
            endpoint,
            _turn: turn,
        })
    }

    /// Stores packets until there is a session, and requests one. Returns the number of older
    /// packets dropped.
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
            state.staging.packets.push_back(packet);
            if state.staging.packets.len() > MAX_STAGED_PACKETS {
                state.staging.packets.pop_front();
                dropped += 1;
            }
        }
        // The system passes packets on as soon as the interface is up, and the control loop
        // learns of that a moment later. These packets are sent then.
        if !state.up {
            state.staging.staged_before_up.get_or_insert(now);
            return dropped;
        }
        // A session may have been established since [`Self::reserve`] refused.
        if state.can_send(now) {
            state.control.work.flush = true;
        } else {
            state.request_handshake(now);
        }
        self.unlock_and_notify(work_queue, state);
        dropped
    }

    /// Accounts for decrypted packets of `session`. Returns `false` if the peer has been removed
    /// or the device is down; the packets must then be dropped.
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
            state.control.work.confirmed = Some(session.local_index());
            state.lanes.note_session(session.lanes());
        }
        state.endpoint = Some(from);
        state.received(now, received.bytes);
        if received.data {
            state.data_received(now);
        }
        state.renew_on_receive(now);
        state.check_lanes(now, session, &received);
        self.unlock_and_notify(work_queue, state);
        true
    }

    /// Unlocks the state, and notifies the control loop if it has work.
    pub(crate) fn unlock_and_notify(
        self: &Arc<Self>,
        work_queue: &WorkQueue,
        mut state: std::sync::MutexGuard<'_, PeerState>,
    ) {
        let sooner = state.timers.soonest() < state.control.scheduled;
        if (state.control.work.any() || sooner) && !state.control.notified {
            state.control.notified = true;
            drop(state);
            work_queue.post(Arc::clone(self));
        }
    }
}

/// Totals over the packets of one batch.
#[derive(Default)]
pub(crate) struct Received {
    /// Bytes of messages, with their headers.
    pub(crate) bytes: u64,
    /// True if a message was not a keepalive.
    pub(crate) data: bool,
    /// Accepted messages; 0 unless the session is received over several lanes.
    pub(crate) spread: u32,
    /// The number of them that arrived on a wrong lane.
    pub(crate) misplaced: u32,
}

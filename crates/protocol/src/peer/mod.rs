//! A peer as the way of a packet sees it: the sessions it sends with, where it
//! is reached, what waits for it, and its timers.
//!
//! All of it is under one lock that is taken once per batch and held for a few
//! instructions; never while anything is encrypted. What only handshakes need
//! lives in [`crate::device`].

mod endpoint_name;
mod entry;
mod outbound;
pub mod replay;
mod session;
mod sessions;
mod state;
mod timers;
mod work_queue;

use std::sync::{Arc, Mutex};

use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::limits::MAX_STAGED_PACKETS;
use crate::lock;
use crate::time::Instant;

pub(crate) use endpoint_name::Named;
pub(crate) use entry::{PeerEntry, Peers, Pending};
pub use outbound::{Outbound, Reservation, Staged};
pub(crate) use session::CHUNK;
pub use session::{Role, Session};
pub(crate) use sessions::Sessions;
pub(crate) use state::{PeerState, PendingWork, Traffic, clear_local, move_endpoint, set_endpoint};
pub use timers::Reason;
pub(crate) use timers::Timers;
pub use work_queue::Wake;
pub(crate) use work_queue::WorkQueue;

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
        lock(&self.state).initiation.unanswered.is_some()
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
        if !state.up || !state.staging.packets.is_empty() {
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
            state.staging.packets.push_back(packet);
            if state.staging.packets.len() > MAX_STAGED_PACKETS {
                state.staging.packets.pop_front();
                dropped += 1;
            }
        }
        // The system lets packets out as soon as the interface is up, which
        // the control loop learns a moment later: they leave then.
        if !state.up {
            state.staging.early.get_or_insert(now);
            return dropped;
        }
        // A session may have come up since the packets were refused.
        if state.can_send(now) {
            state.control.work.flush = true;
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
            state.control.work.confirmed = Some(session.local_index());
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
        let sooner = state.timers.soonest() < state.control.scheduled;
        if (state.control.work.any() || sooner) && !state.control.notified {
            state.control.notified = true;
            drop(state);
            work_queue.post(Arc::clone(self));
        }
    }
}

/// What the packets of one batch add up to.
#[derive(Default)]
pub(crate) struct Received {
    /// Of messages, with their headers.
    pub(crate) bytes: u64,
    /// Whether any was more than a keepalive.
    pub(crate) data: bool,
}

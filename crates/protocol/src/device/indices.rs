//! Indices of sessions, and the lanes that they state.

use crate::device::Core;
use crate::handshake::noise::Precomputed;
use crate::lanes::{IndexTag, Lanes, RANDOM_CLASSES, Sender, SessionLanes};
use crate::lock;
use crate::peer::{Agreed, PeerEntry, PeerId, Role};
use crate::suite::Suite;
use crate::time::Tai64N;

/// Handshake for which an index is chosen or read.
pub(crate) struct IndexPurpose<'a> {
    pub(crate) peer: PeerId,
    pub(crate) precomputed: &'a Precomputed,
    /// Timestamp of the initiation.
    pub(crate) timestamp: Tai64N,
}

impl IndexPurpose<'_> {
    fn tag(&self) -> IndexTag<'_> {
        IndexTag {
            static_static: &self.precomputed.static_static,
            timestamp: self.timestamp,
        }
    }
}

impl Core {
    /// Returns an unused index. On a device with lanes, the index states their number, and the
    /// session is received over `spread` of them. On other devices it is random.
    pub(crate) fn new_index(
        &mut self,
        purpose: &IndexPurpose<'_>,
        sender: Sender,
        spread: Lanes,
    ) -> u32 {
        let steering = *self.path.steering();
        let lanes = steering.lanes();
        if lanes > Lanes::One {
            // All sessions of a peer have the same base lane. The peers are spread over the lanes.
            let base = lanes.wrap(purpose.peer.0.into());
            let random = self.random.number();
            for attempt in 0..RANDOM_CLASSES {
                let class = steering.class_bytes(spread, base, random.wrapping_add(attempt));
                let index = (purpose.tag()).index(self.crypto, sender, lanes, class);
                if self.is_free(index) {
                    return index;
                }
            }
        }
        loop {
            let random = self.random.number();
            let index = self.with_index_prefix(random);
            if self.is_free(index) {
                return index;
            }
        }
    }

    fn is_free(&self, index: u32) -> bool {
        !self.pending.contains_key(&index) && !self.path.sessions.contains(index)
    }

    /// Returns the number of lanes of the peer that has chosen `index` as `sender`. A device with
    /// one lane does not check.
    fn remote_lanes(&self, purpose: &IndexPurpose<'_>, sender: Sender, index: u32) -> Lanes {
        match self.path.steering().lanes() {
            Lanes::One => Lanes::One,
            _ => purpose.tag().lanes(self.crypto, sender, index),
        }
    }

    /// Chooses the local index of the responder's session. `receiver` is the index in the
    /// initiation.
    pub(crate) fn choose_responder_index(
        &mut self,
        entry: &PeerEntry,
        purpose: &IndexPurpose<'_>,
        receiver: u32,
        suite: Option<Suite>,
    ) -> Agreed {
        let remote = self.remote_lanes(purpose, Sender::Initiator, receiver);
        let own = self.path.steering().lanes();
        let spread = lock(&entry.peer.state).lanes.spread(own, remote);
        let index = self.new_index(purpose, Sender::Responder, spread);
        Agreed {
            role: Role::Responder,
            local_index: index,
            remote_index: receiver,
            suite,
            lanes: self.session_lanes(index, remote),
        }
    }

    /// Returns the lanes of the initiator's session. `index` is this side's index, and
    /// `remote_index` the index in the response.
    pub(crate) fn initiator_lanes(
        &self,
        entry: &PeerEntry,
        index: u32,
        remote_index: u32,
    ) -> SessionLanes {
        let handshakes = entry.handshakes.as_ref();
        let known = handshakes
            .and_then(|it| Some((it.precomputed.as_ref()?.as_ref()?, it.timestamp_sent?)));
        let remote = known.map_or(Lanes::One, |(precomputed, timestamp)| {
            let purpose = IndexPurpose {
                peer: entry.peer.id(),
                precomputed,
                timestamp,
            };
            self.remote_lanes(&purpose, Sender::Responder, remote_index)
        });
        self.session_lanes(index, remote)
    }

    /// Returns the lanes of a session with local index `index`.
    fn session_lanes(&self, index: u32, remote: Lanes) -> SessionLanes {
        let steering = self.path.steering();
        SessionLanes {
            own: steering.lanes(),
            remote,
            spread: steering.spread(index).width(),
        }
    }
}

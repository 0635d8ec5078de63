//! Lanes of a peer's device, and evidence that its messages arrive on wrong lanes.

use core::cmp::Ordering;

use crate::lanes::{Lanes, SessionLanes};
use crate::limits::{
    INTERLEAVING_MESSAGES, INTERLEAVING_PERCENT, INTERLEAVING_TIME, SPREAD_AFTER_BYTES,
};
use crate::peer::Session;
use crate::time::Instant;
use crate::update::LaneStatus;

#[derive(Default)]
pub(crate) struct PeerLanes {
    /// Number of lanes of the peer's device in its current session.
    remote: Lanes,
    /// True after many messages have arrived on wrong lanes.
    is_interleaved: bool,
    /// Start of the interval in which messages are counted.
    since: Instant,
    /// Accepted messages of sessions with several lanes in this interval.
    accepted: u32,
    /// The number of them that arrived on a wrong lane.
    misplaced: u32,
    /// Bytes that the current session may still receive before it is renewed. The new session is
    /// received over the right number of lanes.
    renew_after: Option<u64>,
}

impl PeerLanes {
    /// Returns the number of lanes over which this side receives a new session with a device of
    /// `remote` lanes.
    pub(crate) fn spread(&self, own: Lanes, remote: Lanes) -> Lanes {
        if self.is_interleaved {
            Lanes::One
        } else {
            own.min(remote)
        }
    }

    /// Returns [`Self::spread`] for the number of lanes that the peer had last.
    pub(crate) fn expected_spread(&self, own: Lanes) -> Lanes {
        self.spread(own, self.remote)
    }

    /// Returns the lanes of the current session; `None` if this device has one lane.
    pub(crate) fn status(&self, session: &Session) -> Option<LaneStatus> {
        let lanes = session.lanes();
        (lanes.own > Lanes::One).then_some(LaneStatus {
            receiving: lanes.spread,
            remote: lanes.remote,
            interleaved: self.is_interleaved,
        })
    }

    /// Allows the peer's sessions several lanes again.
    pub(crate) fn forget_interleaving(&mut self) {
        self.is_interleaved = false;
        (self.accepted, self.misplaced) = (0, 0);
    }

    /// Records that a session has become the current one.
    pub(crate) fn note_session(&mut self, lanes: SessionLanes) {
        self.remote = lanes.remote;
        let right = self.spread(lanes.own, lanes.remote);
        // The initiator chooses its index before it knows the responder's lanes.
        self.renew_after = match right.cmp(&lanes.spread) {
            Ordering::Equal => None,
            // Too many lanes: each lane of the sender is spread over several lanes.
            Ordering::Less => Some(0),
            Ordering::Greater => Some(SPREAD_AFTER_BYTES),
        };
    }

    /// Accounts for bytes of the current session. Returns `true` if a new session is needed.
    pub(crate) fn needs_renewal(&mut self, bytes: u64) -> bool {
        let Some(left) = self.renew_after else {
            return false;
        };
        self.renew_after = left.checked_sub(bytes).filter(|left| *left > 0);
        self.renew_after.is_none()
    }

    /// Accounts for accepted messages of a session with several lanes, of which `misplaced`
    /// arrived on a wrong lane. Returns `true` if new sessions must have one lane.
    pub(crate) fn is_misplaced(&mut self, now: Instant, accepted: u32, misplaced: u32) -> bool {
        if self.is_interleaved {
            return false;
        }
        if now.since(self.since) >= INTERLEAVING_TIME {
            self.since = now;
            (self.accepted, self.misplaced) = (0, 0);
        }
        self.accepted = self.accepted.saturating_add(accepted);
        self.misplaced = self.misplaced.saturating_add(misplaced);
        let percent = u64::from(self.misplaced) * 100;
        self.is_interleaved = self.accepted >= INTERLEAVING_MESSAGES
            && percent > u64::from(self.accepted) * INTERLEAVING_PERCENT;
        self.is_interleaved
    }
}

//! A hybrid initiation that waits for its response.

use crate::hybrid::noise::{AwaitingPartB, HybridInitiator, Parts};
use crate::limits::{MAX_PROVISIONAL, RESEND_PARTS_AFTER};
use crate::time::Instant;

pub(crate) struct HybridInitiation {
    pub(crate) initiator: HybridInitiator,
    pub(crate) begun: Instant,
    /// Number of times that the parts have been sent again.
    pub(crate) resent: usize,
    pub(crate) parts: Parts,
    /// Parts of responses, by the responder's index. There can be several responses: an attacker
    /// who replays the initiation from another address causes one, and a responder that has lost
    /// its state makes another. At most [`MAX_PROVISIONAL`]; the oldest is dropped first.
    pub(crate) responses: Vec<(u32, ResponsePart)>,
    pub(crate) has_cookie: bool,
}

/// The one part of a response that has arrived.
pub(crate) enum ResponsePart {
    /// The first part, verified. Growth of the list would leave copies of its secrets.
    A(Box<AwaitingPartB>),
    /// The second part, which cannot be opened before the first.
    B(Vec<u8>),
}

impl HybridInitiation {
    pub(crate) fn new(initiator: HybridInitiator, parts: Parts, now: Instant) -> Self {
        Self {
            initiator,
            begun: now,
            resent: 0,
            parts,
            responses: Vec::new(),
            has_cookie: false,
        }
    }

    /// Records that a cookie reply has arrived. Returns `true` for the first one: each time the
    /// parts are sent, a cookie may answer them.
    pub(crate) fn note_first_cookie(&mut self) -> bool {
        !core::mem::replace(&mut self.has_cookie, true)
    }

    pub(crate) fn store(&mut self, sender: u32, part: ResponsePart) {
        self.responses.retain(|(of, _)| *of != sender);
        if self.responses.len() == MAX_PROVISIONAL {
            self.responses.remove(0);
        }
        self.responses.push((sender, part));
    }

    /// Counts a resend. Resends that have become due at the same time, while the machine slept,
    /// are skipped.
    pub(crate) fn count_resend(&mut self, now: Instant) {
        self.resent += 1;
        while self.resend_at().is_some_and(|at| at <= now) {
            self.resent += 1;
        }
    }

    /// Returns the time of the next resend.
    pub(crate) fn resend_at(&self) -> Option<Instant> {
        let after = RESEND_PARTS_AFTER.get(self.resent)?;
        Some(self.begun + *after)
    }
}

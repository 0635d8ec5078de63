//! A hybrid initiation that waits for its response.

use crate::hybrid::noise::{Halfway, Initiator, Parts};
use crate::limits::{MAX_PROVISIONAL, RESEND_PARTS_AFTER};
use crate::time::Instant;

pub(crate) struct Waiting {
    pub(crate) initiator: Initiator,
    pub(crate) begun: Instant,
    /// Number of times that the parts have been sent again.
    pub(crate) resent: usize,
    pub(crate) parts: Parts,
    /// Parts of responses, by the responder's index. There can be several responses: an attacker
    /// who replays the initiation from another address causes one, and a responder that has lost
    /// its state makes another. At most [`MAX_PROVISIONAL`]; the oldest is dropped first.
    pub(crate) answers: Vec<(u32, Partly)>,
    pub(crate) has_cookie: bool,
}

/// The one part of a response that has arrived.
pub(crate) enum Partly {
    /// The first part, verified.
    Halfway(Halfway),
    /// The second part, which cannot be opened before the first.
    Early(Vec<u8>),
}

impl Waiting {
    pub(crate) fn new(initiator: Initiator, parts: Parts, now: Instant) -> Self {
        Self {
            initiator,
            begun: now,
            resent: 0,
            parts,
            answers: Vec::new(),
            has_cookie: false,
        }
    }

    /// Records that a cookie reply has arrived. Returns `true` for the first one: each time the
    /// parts are sent, a cookie may answer them.
    pub(crate) fn is_first_cookie(&mut self) -> bool {
        !core::mem::replace(&mut self.has_cookie, true)
    }

    pub(crate) fn keep(&mut self, sender: u32, part: Partly) {
        self.answers.retain(|(of, _)| *of != sender);
        if self.answers.len() == MAX_PROVISIONAL {
            self.answers.remove(0);
        }
        self.answers.push((sender, part));
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

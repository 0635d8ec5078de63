//! An initiation that waits for its response.

use crate::hybrid::noise::{Halfway, Initiator, Parts};
use crate::limits::{MAX_PROVISIONAL, RESEND_PARTS_AFTER};
use crate::time::Instant;

/// An initiation that waits for its response.
pub(crate) struct Waiting {
    pub(crate) initiator: Initiator,
    pub(crate) begun: Instant,
    /// How often the parts have been sent again.
    pub(crate) resent: usize,
    pub(crate) parts: Parts,
    /// What has come of responses, by the responder's index. There may be several: who has sent
    /// the initiation again from elsewhere has had one made too, and so has a responder that has
    /// begun anew in between. Few; the oldest goes first.
    pub(crate) answers: Vec<(u32, Partly)>,
    pub(crate) has_cookie: bool,
}

/// One part of a response.
pub(crate) enum Partly {
    /// The first.
    Halfway(Halfway),
    /// The second, which cannot be opened before the first.
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

    /// A cookie has come for it. Whether it is the first: one may come for its parts each time
    /// that they are sent.
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

    /// Notes that the parts are sent again. What was due while the machine slept is one.
    pub(crate) fn count_resend(&mut self, now: Instant) {
        self.resent += 1;
        while self.resend_at().is_some_and(|at| at <= now) {
            self.resent += 1;
        }
    }

    /// When the parts are sent again next.
    pub(crate) fn resend_at(&self) -> Option<Instant> {
        let after = RESEND_PARTS_AFTER.get(self.resent)?;
        Some(self.begun + *after)
    }
}

//! Estimate of packet loss, from the counters of the messages that have arrived.

use std::collections::VecDeque;

/// The number of recent sessions that the estimate covers.
const SESSIONS: usize = 3;

#[derive(Default)]
pub(super) struct Loss(VecDeque<Session>);

struct Session {
    index: u32,
    received: u64,
    /// The greatest counter plus one: the number of messages that the peer has sent.
    next: u64,
}

impl Loss {
    /// Records an authentic message by its session index and counter.
    pub(super) fn count(&mut self, (index, counter): (u32, u64)) {
        let next = counter.saturating_add(1);
        let found = self.0.iter_mut().find(|session| session.index == index);
        if let Some(session) = found {
            session.received += 1;
            session.next = session.next.max(next);
            return;
        }
        if self.0.len() == SESSIONS {
            self.0.pop_front();
        }
        self.0.push_back(Session {
            index,
            received: 1,
            next,
        });
    }

    /// Returns the fraction of messages that are missing, 0 to 1; 0 if nothing has arrived.
    pub(super) fn estimate(&self) -> f32 {
        let sum = |of: fn(&Session) -> u64| -> f64 { self.0.iter().map(|it| of(it) as f64).sum() };
        let expected = sum(|session| session.next);
        if expected == 0.0 {
            return 0.0;
        }
        (1.0 - sum(|session| session.received) / expected).clamp(0.0, 1.0) as f32
    }
}

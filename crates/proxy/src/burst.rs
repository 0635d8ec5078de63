//! Free memory, given back to the system after a burst of clients.
//!
//! The C library keeps most of the memory that connections have freed. A process that once had
//! many connections would stay as large while it is idle.

use core::time::Duration;
use taupe_protocol::time::Instant;

/// From the end of a burst until memory is given back, so that the next burst still finds it.
const DELAY: Duration = Duration::from_secs(5);

/// The fewest clients that are a burst.
const LEAST: usize = 32;

/// The number of clients over time.
#[derive(Default)]
pub(crate) struct Burst {
    /// The most since memory was given back.
    peak: usize,
    due: Option<Instant>,
}

impl Burst {
    /// Takes note of the number of clients.
    pub(crate) fn note(&mut self, now: Instant, clients: usize) {
        self.peak = self.peak.max(clients);
        if self.due.is_none() && self.is_over(clients) {
            self.due = Some(now + DELAY);
        }
    }

    /// Returns the time from which [`Burst::is_due`] may be true.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Checks whether memory is to be given back now.
    pub(crate) fn is_due(&mut self, now: Instant, clients: usize) -> bool {
        if self.due.is_none_or(|at| at > now) {
            return false;
        }
        self.due = None;
        let is_over = self.is_over(clients);
        if is_over {
            self.peak = clients;
        }
        is_over
    }

    /// Checks whether a burst has been, and half of its clients have gone.
    fn is_over(&self, clients: usize) -> bool {
        self.peak >= LEAST && clients <= self.peak / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_after_a_burst() {
        let mut burst = Burst::default();
        let start = Instant(5_000_000_000);
        for clients in (0..=1500).chain((751..1500).rev()) {
            burst.note(start, clients);
        }
        assert_eq!(burst.next_deadline(), None, "more than half are there");
        burst.note(start, 750);
        assert_eq!(burst.next_deadline(), Some(start + DELAY));
        assert!(!burst.is_due(start, 750));
        burst.note(start + DELAY, 0);
        assert!(burst.is_due(start + DELAY, 0));
        burst.note(start + DELAY, 0);
        assert_eq!(burst.next_deadline(), None);
    }

    #[test]
    fn the_next_burst_and_few_clients_keep_their_memory() {
        let mut burst = Burst::default();
        let start = Instant(5_000_000_000);
        for clients in [1, 0, LEAST - 1, 0] {
            burst.note(start, clients);
            assert_eq!(burst.next_deadline(), None);
        }
        burst.note(start, 100);
        burst.note(start, 50);
        burst.note(start + DELAY, 100);
        assert!(!burst.is_due(start + DELAY, 100));
        burst.note(start + DELAY, 50);
        assert_eq!(burst.next_deadline(), Some(start + DELAY + DELAY));
    }
}

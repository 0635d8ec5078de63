//! Returns free memory to the system after a burst of clients.
//!
//! The C library retains most memory that closed connections have freed, so a process that once had
//! many clients would stay as large while idle.

use core::time::Duration;
use taupe_protocol::time::Instant;

/// Time from the end of a burst until memory is returned. The next burst may still reuse it.
const DELAY: Duration = Duration::from_secs(5);

/// The fewest clients that count as a burst.
const LEAST: usize = 32;

/// Tracks the number of clients.
#[derive(Default)]
pub(crate) struct Burst {
    /// Most clients since memory was last returned.
    peak: usize,
    due: Option<Instant>,
}

impl Burst {
    /// Records the number of clients.
    pub(crate) fn note(&mut self, now: Instant, clients: usize) {
        self.peak = self.peak.max(clients);
        if self.due.is_none() && self.is_over(clients) {
            self.due = Some(now + DELAY);
        }
    }

    /// Returns the time at which [`Burst::is_due`] may become true.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Returns true if memory should be returned now.
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

    /// Returns true if at least half of a burst's clients have gone.
    fn is_over(&self, clients: usize) -> bool {
        self.peak >= LEAST && clients <= self.peak / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_once_after_a_burst() {
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
    fn a_second_burst_or_few_clients_delay_the_return_of_memory() {
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

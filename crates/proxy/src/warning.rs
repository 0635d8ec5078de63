//! Warnings that are not repeated too often.

use core::time::Duration;
use taupe_protocol::time::Instant;

/// The shortest time from one warning to the next.
const INTERVAL: Duration = Duration::from_secs(60);

/// A warning about a state that may last.
#[derive(Default)]
pub(crate) struct Warning {
    last: Option<Instant>,
}

impl Warning {
    /// Checks whether the warning is to be logged now. If so, takes it for logged.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|at| now.since(at) >= INTERVAL);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_logged_once_a_minute() {
        let mut warning = Warning::default();
        let start = Instant(5_000_000_000);
        for (seconds, expected) in [(0, true), (1, false), (59, false), (60, true), (61, false)] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(warning.is_due(now), expected, "{seconds}");
        }
    }
}

//! Rate-limited warnings.

use core::time::Duration;
use taupe_protocol::time::Instant;

/// The shortest time between two warnings.
const INTERVAL: Duration = Duration::from_secs(60);

/// A warning about a state that may last.
#[derive(Default)]
pub struct Warning {
    last: Option<Instant>,
}

impl Warning {
    /// Returns true if the warning should be logged now, and then records that it was.
    pub fn is_due(&mut self, now: Instant) -> bool {
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

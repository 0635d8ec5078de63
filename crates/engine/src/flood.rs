//! Detection of handshake floods, by the rate of datagrams on the handshake sockets.
//!
//! There are two thresholds:
//!
//! - 128 datagrams in 8 ms: the control loop no longer wakes up for each message, but reads the
//!   sockets every 8 ms. A wake-up preempts a thread that carries packets, so in a flood the
//!   wake-ups cost an established tunnel more than the messages do.
//! - 16,384 datagrams in a second: a filter drops most of them in the kernel
//!   ([`crate::flood_filter`]).

use std::time::Duration;

use taupe_protocol::time::Instant;

/// The pause between two reads of the handshake sockets during a flood.
pub(crate) const PAUSE: Duration = Duration::from_millis(8);

/// Datagrams in one [`PAUSE`] that are a flood. 16,000 a second are more than one processor can
/// answer with a handshake, so the pause delays nobody who could be answered sooner.
const FLOOD_PER_PAUSE: usize = 128;

/// Datagrams in a second from which on the kernel drops most of them. Fewer take a fortieth of a
/// processor to receive and refuse. A million peers that all rekey every two minutes send fewer.
/// At such a rate cookies are required anyway, so a new sender needs a second attempt with or
/// without the filter.
const FILTER_PER_SECOND: usize = 16_384;

/// The filter stays for this long after the rate was last exceeded, so that a flood in pulses is
/// one flood. It admits new senders while they are few.
const LINGER: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Flood {
    is_ongoing: bool,
    /// Datagrams in the present [`PAUSE`].
    recent: Count,
    /// Datagrams in the present second.
    second: Count,
    filter_until: Option<Instant>,
}

/// Number of datagrams since a moment.
#[derive(Default)]
struct Count {
    since: Instant,
    count: usize,
}

impl Flood {
    /// Records `count` datagrams that were received, or dropped by the filter, since the last call.
    pub(crate) fn record(&mut self, now: Instant, count: usize) {
        let over = self.recent.add(now, count, PAUSE);
        self.is_ongoing = self.recent.count >= FLOOD_PER_PAUSE || self.is_ongoing && !over;
        if over {
            self.recent.restart(now);
        }
        let over = self.second.add(now, count, Duration::from_secs(1));
        if self.second.count >= FILTER_PER_SECOND {
            self.filter_until = Some(now + LINGER);
        } else if self.filter_until.is_some_and(|until| until <= now) {
            self.filter_until = None;
        }
        if over {
            self.second.restart(now);
        }
    }

    pub(crate) fn is_ongoing(&self) -> bool {
        self.is_ongoing
    }

    /// Returns the time until which the filter is needed, if it is.
    pub(crate) fn filter_until(&self) -> Option<Instant> {
        self.filter_until
    }
}

impl Count {
    /// Adds `count` datagrams, and returns true if `span` is over. If two or more spans have passed
    /// since the start, the new datagrams replace the count, divided by the number of spans.
    fn add(&mut self, now: Instant, count: usize, span: Duration) -> bool {
        let spans = now.since(self.since).as_nanos() / span.as_nanos();
        let spans = usize::try_from(spans).unwrap_or(usize::MAX);
        self.count = if spans < 2 {
            self.count.saturating_add(count)
        } else {
            count / spans
        };
        spans >= 1
    }

    fn restart(&mut self, now: Instant) {
        *self = Self {
            since: now,
            count: 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records `count` datagrams at a millisecond.
    fn record(flood: &mut Flood, millisecond: u64, count: usize) {
        flood.record(Instant(millisecond * 1_000_000), count);
    }

    #[test]
    fn a_flood_begins_and_ends_with_the_rate() {
        let mut flood = Flood::default();
        let mut at = |millisecond, count| {
            record(&mut flood, millisecond, count);
            flood.is_ongoing()
        };
        at(999, 0);
        assert!(!at(1_000, 50));
        assert!(!at(1_002, 50));
        assert!(!at(1_004, 27), "not many");
        assert!(!at(1_009, 0));
        assert!(!at(1_018, 127), "nor after a pause");
        assert!(!at(1_030, 100));
        assert!(at(1_031, 128), "at once");
        assert!(at(1_032, 0), "until the next look");
        assert!(at(1_040, 500));
        assert!(!at(1_050, 3), "it is over");
        assert!(!at(1_051, 3));
        assert!(!at(1_851, 12_000), "of a long time");
        assert!(at(2_651, 12_801));
    }

    #[test]
    fn the_filter_lingers_after_a_high_rate() {
        let mut flood = Flood::default();
        let mut at = |millisecond, count| {
            record(&mut flood, millisecond, count);
            flood.filter_until().map(|until| until.0 / 1_000_000)
        };
        at(1_000, 0);
        assert_eq!(at(1_500, FILTER_PER_SECOND - 1), None);
        assert_eq!(at(2_001, 0), None, "another second");
        assert_eq!(at(2_500, FILTER_PER_SECOND - 1), None);
        assert_eq!(at(2_600, 1), Some(12_600));
        // Pulses, with silence between them.
        assert_eq!(at(7_000, FILTER_PER_SECOND - 1), Some(12_600));
        assert_eq!(at(7_100, FILTER_PER_SECOND), Some(17_100));
        assert_eq!(at(17_099, 4), Some(17_100));
        assert_eq!(at(17_100, 4), None);
        // The number of datagrams does not prolong it.
        assert_eq!(at(18_500, 1_000 * FILTER_PER_SECOND), Some(28_500));
        assert_eq!(at(28_500, 4), None);
    }
}

//! Whether handshake messages, or what passes for them until it is read, come so
//! fast that the control loop had better look for them now and then than be woken
//! by each; and whether there are so many of them that the kernel had better shed
//! them ([`crate::flood_filter`]).
//!
//! To be woken takes the processor from a thread that carries packets. In a flood
//! that costs an established tunnel more than handling the messages does, most of
//! which are not wanted.

use std::time::Duration;

use taupe_protocol::time::Instant;

/// From one look at a flood to the next.
pub(crate) const PAUSE: Duration = Duration::from_millis(8);

/// Messages in as long that make a flood: 16,000 a second, more than one processor
/// could answer with a handshake. Who waits for an answer does not wait for this.
const FLOOD: usize = 128;

/// Messages in a second from which on they are shed: fewer take a fortieth of a processor to
/// receive and refuse, and more are not sent by a million peers that all shake hands anew every
/// two minutes. Of more than are answered in a second cookies let in who asks twice, so that
/// a newcomer waits for the second try in either case.
const MANY: usize = 16_384;

/// For how long they are shed after there were last so many: a flood in pulses is one flood.
/// Newcomers are kept anyway while they are few.
const LINGER: Duration = Duration::from_secs(10);

/// What has come lately.
#[derive(Default)]
pub(crate) struct Flood {
    goes_on: bool,
    recent: Count,
    second: Count,
    shed_until: Option<Instant>,
}

/// Messages since some time.
#[derive(Default)]
struct Count {
    since: Instant,
    count: usize,
}

impl Flood {
    /// Notes that `count` messages were found at `now`, or shed since the last time.
    pub(crate) fn came(&mut self, now: Instant, count: usize) {
        let over = self.recent.add(now, count, PAUSE);
        self.goes_on = self.recent.count >= FLOOD || self.goes_on && !over;
        if over {
            self.recent.restart(now);
        }
        let over = self.second.add(now, count, Duration::from_secs(1));
        if self.second.count >= MANY {
            self.shed_until = Some(now + LINGER);
        } else if self.shed_until.is_some_and(|until| until <= now) {
            self.shed_until = None;
        }
        if over {
            self.second.restart(now);
        }
    }

    /// Whether there is a flood, as far as is known.
    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Until when the kernel is to shed what it can.
    pub(crate) fn shed_until(&self) -> Option<Instant> {
        self.shed_until
    }
}

impl Count {
    /// Adds what has come since the last time. Whether `span` is over. After a pause only what
    /// is new counts, and of that as much as came in one span.
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

    /// What is noted at a millisecond.
    fn came(flood: &mut Flood, millisecond: u64, count: usize) {
        flood.came(Instant(millisecond * 1_000_000), count);
    }

    #[test]
    fn a_flood_is_what_comes_fast_and_for_as_long() {
        let mut flood = Flood::default();
        let mut at = |millisecond, count| {
            came(&mut flood, millisecond, count);
            flood.goes_on()
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
    fn many_are_shed_and_for_a_while_after() {
        let mut flood = Flood::default();
        let mut at = |millisecond, count| {
            came(&mut flood, millisecond, count);
            flood.shed_until().map(|until| until.0 / 1_000_000)
        };
        at(1_000, 0);
        assert_eq!(at(1_500, MANY - 1), None);
        assert_eq!(at(2_001, 0), None, "another second");
        assert_eq!(at(2_500, MANY - 1), None);
        assert_eq!(at(2_600, 1), Some(12_600));
        // Pulses, with silence between them.
        assert_eq!(at(7_000, MANY - 1), Some(12_600));
        assert_eq!(at(7_100, MANY), Some(17_100));
        assert_eq!(at(17_099, 4), Some(17_100));
        assert_eq!(at(17_100, 4), None);
        // However many there were.
        assert_eq!(at(18_500, 1_000 * MANY), Some(28_500));
        assert_eq!(at(28_500, 4), None);
    }
}

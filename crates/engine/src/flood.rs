//! Whether handshake messages, or what passes for them until it is read, come so
//! fast that the control loop had better look for them now and then than be woken
//! by each.
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

/// What has come lately.
#[derive(Default)]
pub(crate) struct Flood {
    goes_on: bool,
    since: Instant,
    count: usize,
}

impl Flood {
    /// Notes that `count` messages were found at `now`.
    pub(crate) fn came(&mut self, now: Instant, count: usize) {
        self.count += count;
        let over = now.since(self.since) >= PAUSE;
        self.goes_on = self.count >= FLOOD || self.goes_on && !over;
        if over {
            (self.since, self.count) = (now, 0);
        }
    }

    /// Whether there is a flood, as far as is known.
    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_what_comes_fast_and_for_as_long() {
        let mut flood = Flood::default();
        let mut at = |millisecond: u64, count| {
            flood.came(Instant(millisecond * 1_000_000), count);
            flood.goes_on()
        };
        assert!(!at(1_000, 50));
        assert!(!at(1_002, 50));
        assert!(!at(1_004, 77), "not many");
        assert!(!at(1_009, 0));
        assert!(!at(1_018, 127), "nor after a pause");
        assert!(!at(1_030, 100));
        assert!(at(1_031, 128), "at once");
        assert!(at(1_032, 0), "until the next look");
        assert!(at(1_040, 500));
        assert!(!at(1_050, 3), "it is over");
        assert!(!at(1_051, 3));
    }
}

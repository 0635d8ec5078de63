//! What a thread has carried lately, and how much of its time that took.

use std::time::Duration;

use taupe_protocol::time::Instant;

/// How long is looked at.
const WINDOW: Duration = Duration::from_millis(10);

/// One turn of carrying what a source has brought.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    /// When it was there.
    pub(crate) came: Instant,
    /// When all of it was carried.
    pub(crate) ended: Instant,
    pub(crate) bytes: usize,
}

/// What one window was like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Bytes in 10 ms.
    pub(crate) bytes: u64,
    /// Percent of the time in which the thread did not wait.
    pub(crate) busy: u64,
}

/// Measures the load of one thread.
#[derive(Default)]
pub(crate) struct Meter {
    began: Instant,
    /// When the last round ended.
    ended: Instant,
    waited: Duration,
    bytes: u64,
}

impl Meter {
    /// Notes a round. What the window was like, if that has ended it.
    pub(crate) fn note(&mut self, round: &Round) -> Option<Load> {
        self.waited += round.came.since(self.ended);
        self.ended = round.ended;
        self.bytes += round.bytes as u64;
        let took = self.ended.since(self.began);
        if took < WINDOW {
            return None;
        }
        // A window is longer than it should be by what the last packet took to
        // come.
        let windows = (took.as_nanos() / WINDOW.as_nanos()).max(1);
        let busy = 100 * took.saturating_sub(self.waited).as_nanos() / took.as_nanos();
        let load = Load {
            bytes: self.bytes / u64::try_from(windows).unwrap_or(u64::MAX),
            busy: u64::try_from(busy).unwrap_or(100),
        };
        *self = Self {
            began: self.ended,
            ended: self.ended,
            ..Self::default()
        };
        Some(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: u64 = 1000;

    fn round(came: u64, ended: u64, bytes: usize) -> Round {
        let [came, ended] = [came, ended].map(|at| Instant(at * MICROSECOND));
        Round { came, ended, bytes }
    }

    #[test]
    fn a_window_is_what_has_been_carried_in_ten_milliseconds() {
        let mut meter = Meter::default();
        assert!(meter.note(&round(1_000_000, 1_000_000, 7)).is_some());
        for i in 1..10 {
            let at = 1_000_000 + 1000 * i;
            assert_eq!(meter.note(&round(at - 300, at, 1000)), None);
        }
        let load = meter.note(&round(1_009_700, 1_010_000, 1000));
        let (bytes, busy) = (10_000, 30);
        assert_eq!(load, Some(Load { bytes, busy }));
        // Nothing of it is left.
        let load = meter.note(&round(1_020_000, 1_020_000, 1));
        assert_eq!(load, Some(Load { bytes: 1, busy: 0 }));
    }

    #[test]
    fn a_pause_counts_as_many_windows() {
        let mut meter = Meter::default();
        meter.note(&round(1_000_000, 1_000_000, 0));
        meter.note(&round(1_000_000, 1_004_000, 400));
        let load = meter.note(&round(1_040_000, 1_040_000, 0));
        let (bytes, busy) = (100, 10);
        assert_eq!(load, Some(Load { bytes, busy }));
    }

    #[test]
    fn rounds_behind_each_other_are_not_waited_for() {
        let mut meter = Meter::default();
        meter.note(&round(1_000_000, 1_000_000, 0));
        // The second source was ready while the first was carried.
        meter.note(&round(1_005_000, 1_007_000, 1));
        meter.note(&round(1_007_000, 1_009_000, 1));
        let load = meter.note(&round(1_009_000, 1_010_000, 1));
        let (bytes, busy) = (3, 50);
        assert_eq!(load, Some(Load { bytes, busy }));
    }
}

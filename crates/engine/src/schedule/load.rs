//! What a thread has carried lately, and how much of its time that took.

use std::time::Duration;

use taupe_protocol::time::Instant;

/// How long is looked at.
const WINDOW: Duration = Duration::from_millis(10);

/// Percent of the time that rounds take from which on it is worth a system call
/// to learn how much of it the thread really ran.
const ASKS: u64 = 25;

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
    /// Percent of the time in which the thread ran. Who is told of a packet often
    /// takes the processor from the thread that carried it; what it waits for it
    /// then is no work of its own.
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
    /// When it was last asked how long the thread had run, and the answer.
    asked: (Instant, Duration),
}

impl Meter {
    /// Notes a round. What the window was like, if that has ended it. `ran` is
    /// asked now and then how long the thread has run so far.
    pub(crate) fn note(&mut self, round: &Round, ran: impl FnOnce() -> Duration) -> Option<Load> {
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
        // It cannot have run for longer than that.
        let mut busy = percent(took.saturating_sub(self.waited), took);
        if busy >= ASKS {
            let (at, before) = std::mem::replace(&mut self.asked, (self.ended, ran()));
            let more = self.asked.1.saturating_sub(before);
            busy = busy.min(percent(more, self.ended.since(at)));
        }
        let load = Load {
            bytes: self.bytes / u64::try_from(windows).unwrap_or(u64::MAX),
            busy,
        };
        *self = Self {
            began: self.ended,
            ended: self.ended,
            asked: self.asked,
            ..Self::default()
        };
        Some(load)
    }
}

fn percent(part: Duration, whole: Duration) -> u64 {
    let percent = 100 * part.as_nanos() / whole.as_nanos().max(1);
    u64::try_from(percent).unwrap_or(u64::MAX)
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
        assert!(
            meter
                .note(&round(1_000_000, 1_000_000, 7), always)
                .is_some()
        );
        for i in 1..10 {
            let at = 1_000_000 + 1000 * i;
            assert_eq!(meter.note(&round(at - 300, at, 1000), always), None);
        }
        let load = meter.note(&round(1_009_700, 1_010_000, 1000), always);
        let (bytes, busy) = (10_000, 30);
        assert_eq!(load, Some(Load { bytes, busy }));
        // Nothing of it is left.
        let load = meter.note(&round(1_020_000, 1_020_000, 1), always);
        assert_eq!(load, Some(Load { bytes: 1, busy: 0 }));
    }

    /// A thread that nobody takes the processor from.
    fn always() -> Duration {
        Duration::from_secs(1 << 30)
    }

    #[test]
    fn who_is_kept_from_running_is_not_busy() {
        let mut meter = Meter::default();
        meter.note(&round(1_000_000, 1_000_000, 0), always);
        let mut window = |at: u64, ran: u64| {
            let ran = move || Duration::from_millis(ran);
            assert_eq!(meter.note(&round(at, at + 8000, 1), ran), None);
            let load = meter.note(&round(at + 10_000, at + 10_000, 1), ran);
            load.expect("a window").busy
        };
        assert_eq!(window(1_000_000, 100), 9, "since the clocks began");
        assert_eq!(window(1_010_000, 103), 30);
        assert_eq!(window(1_020_000, 110), 70);
        assert_eq!(window(1_030_000, 120), 80, "no more than rounds took");
    }

    #[test]
    fn a_pause_counts_as_many_windows() {
        let mut meter = Meter::default();
        meter.note(&round(1_000_000, 1_000_000, 0), always);
        meter.note(&round(1_000_000, 1_004_000, 400), always);
        let load = meter.note(&round(1_040_000, 1_040_000, 0), always);
        let (bytes, busy) = (100, 10);
        assert_eq!(load, Some(Load { bytes, busy }));
    }

    #[test]
    fn rounds_behind_each_other_are_not_waited_for() {
        let mut meter = Meter::default();
        meter.note(&round(1_000_000, 1_000_000, 0), always);
        // The second source was ready while the first was carried.
        meter.note(&round(1_005_000, 1_007_000, 1), always);
        meter.note(&round(1_007_000, 1_009_000, 1), always);
        let load = meter.note(&round(1_009_000, 1_010_000, 1), always);
        let (bytes, busy) = (3, 50);
        assert_eq!(load, Some(Load { bytes, busy }));
    }
}

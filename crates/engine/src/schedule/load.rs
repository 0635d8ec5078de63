//! The load of a thread: bytes carried and time spent running, over windows of 10 ms.

use std::time::Duration;

use taupe_protocol::time::Instant;

/// The time over which load is measured.
const WINDOW: Duration = Duration::from_millis(10);

/// If turns take at least this percentage of the time, a system call is worth its cost: it returns
/// the CPU time, which excludes waits for the processor.
const CPU_TIME_FROM: u64 = 25;

/// One turn of a packet path: one read from its source, and the processing of its packets.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    /// The time at which the read returned.
    pub(crate) read_at: Instant,
    /// The time at which all packets had been sent.
    pub(crate) ended: Instant,
    pub(crate) bytes: usize,
}

/// The load in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Bytes in 10 ms.
    pub(crate) bytes: u64,
    /// Percentage of the time in which the thread ran. Time in a turn while another program has
    /// the processor does not count: a program that gets a packet often preempts the thread that
    /// wrote it.
    pub(crate) busy: u64,
}

impl Load {
    /// Returns the load of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            busy: self.busy.saturating_add(other.busy),
        }
    }

    /// Returns this load without a part of it.
    pub(crate) fn less(self, part: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(part.bytes),
            busy: self.busy.saturating_sub(part.busy),
        }
    }

    /// Returns the greater number of bytes, and the greater share of the time.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            busy: self.busy.max(other.busy),
        }
    }
}

#[derive(Default)]
pub(crate) struct Meter {
    began: Instant,
    /// The time at which the last turn ended.
    ended: Instant,
    waited: Duration,
    bytes: u64,
    /// The time at which the thread's CPU time was last read, and that CPU time.
    asked: (Instant, Duration),
}

impl Meter {
    /// Records a turn. Returns the load in the window if the turn has ended the window. `ran`
    /// returns the thread's CPU time so far; it is a system call, so it is called rarely.
    pub(crate) fn note(&mut self, turn: &Turn, ran: impl FnOnce() -> Duration) -> Option<Load> {
        self.waited += turn.read_at.since(self.ended);
        self.ended = turn.ended;
        self.bytes += turn.bytes as u64;
        let took = self.ended.since(self.began);
        if took < WINDOW {
            return None;
        }
        // A window ends with a turn, so it may span several times 10 ms. Return the mean.
        let windows = (took.as_nanos() / WINDOW.as_nanos()).max(1);
        // Time in turns: an upper bound of the CPU time.
        let mut busy = percent(took.saturating_sub(self.waited), took);
        if busy >= CPU_TIME_FROM {
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

    fn turn(read_at: u64, ended: u64, bytes: usize) -> Turn {
        let [read_at, ended] = [read_at, ended].map(|at| Instant(at * MICROSECOND));
        Turn {
            read_at,
            ended,
            bytes,
        }
    }

    #[test]
    fn load_is_measured_over_ten_milliseconds() {
        let mut meter = Meter::default();
        assert!(meter.note(&turn(1_000_000, 1_000_000, 7), always).is_some());
        for i in 1..10 {
            let at = 1_000_000 + 1000 * i;
            assert_eq!(meter.note(&turn(at - 300, at, 1000), always), None);
        }
        let load = meter.note(&turn(1_009_700, 1_010_000, 1000), always);
        let (bytes, busy) = (10_000, 30);
        assert_eq!(load, Some(Load { bytes, busy }));
        // The next window starts from zero.
        let load = meter.note(&turn(1_020_000, 1_020_000, 1), always);
        assert_eq!(load, Some(Load { bytes: 1, busy: 0 }));
    }

    /// CPU time of a thread that is never preempted.
    fn always() -> Duration {
        Duration::from_secs(1 << 30)
    }

    #[test]
    fn time_without_the_processor_is_not_busy_time() {
        let mut meter = Meter::default();
        meter.note(&turn(1_000_000, 1_000_000, 0), always);
        let mut window = |at: u64, ran: u64| {
            let ran = move || Duration::from_millis(ran);
            assert_eq!(meter.note(&turn(at, at + 8000, 1), ran), None);
            let load = meter.note(&turn(at + 10_000, at + 10_000, 1), ran);
            load.expect("a window").busy
        };
        assert_eq!(window(1_000_000, 100), 9, "since the clocks began");
        assert_eq!(window(1_010_000, 103), 30);
        assert_eq!(window(1_020_000, 110), 70);
        assert_eq!(window(1_030_000, 120), 80, "no more than rounds took");
    }

    #[test]
    fn load_after_a_pause_is_the_mean_of_its_windows() {
        let mut meter = Meter::default();
        meter.note(&turn(1_000_000, 1_000_000, 0), always);
        meter.note(&turn(1_000_000, 1_004_000, 400), always);
        let load = meter.note(&turn(1_040_000, 1_040_000, 0), always);
        let (bytes, busy) = (100, 10);
        assert_eq!(load, Some(Load { bytes, busy }));
    }

    #[test]
    fn turns_in_sequence_have_no_wait_between_them() {
        let mut meter = Meter::default();
        meter.note(&turn(1_000_000, 1_000_000, 0), always);
        // The second source was ready while the first was carried.
        meter.note(&turn(1_005_000, 1_007_000, 1), always);
        meter.note(&turn(1_007_000, 1_009_000, 1), always);
        let load = meter.note(&turn(1_009_000, 1_010_000, 1), always);
        let (bytes, busy) = (3, 50);
        assert_eq!(load, Some(Load { bytes, busy }));
    }
}

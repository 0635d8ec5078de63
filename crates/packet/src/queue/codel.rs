//! Controlled delay (RFC 8289): decides when a flow gets a signal of congestion.
//!
//! The measure is the time that packets wait, not the length of the queue. A burst makes them wait
//! for a moment; a standing queue makes even the luckiest packet of an interval wait. A flow has a
//! standing queue if for one interval no packet waited less than the target. It then gets a signal,
//! a mark or a drop, and further ones at intervals that shrink with the square root of their
//! number. The rate of a TCP sender falls in proportion to that (RFC 8289, section 3.2).

/// The time that a packet may wait: 5 % of the interval, by which a TCP sender loses hardly any
/// throughput (RFC 8289, section 4.3).
///
/// It is not lowered for the sake of interactive traffic: the packets of a sparse flow do not wait
/// behind those of other flows.
pub(super) const TARGET: u64 = 5_000_000;

/// The time within which a sender can react: a round trip across an ocean (RFC 8289, section 4.2).
/// Senders nearby need less, and for them the byte limit acts sooner.
pub(super) const INTERVAL: u64 = 100_000_000;

/// A flow that needs signals again within this time begins with the rate at which they stopped
/// (RFC 8289, section 5.3).
const MEMORY: u64 = 16 * INTERVAL;

/// State of one flow. All times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Codel {
    /// The time at which packets will have waited too long for a whole interval. `None` while they
    /// do not.
    standing_at: Option<u64>,
    /// The time of the next signal, or the one planned last.
    next: u64,
    /// Signals since the flow began to need them.
    count: u32,
    /// [`Self::count`] at the beginning of this phase.
    first_count: u32,
    is_signalling: bool,
}

impl Codel {
    /// Judges the packet at the head of the flow. Returns true if it has to carry a signal. `few` is
    /// true if there is so little in the queue that it can hardly be shorter.
    pub(super) fn signals(&mut self, now: u64, waited: u64, few: bool) -> bool {
        let is_standing = self.is_standing(now, waited, few);
        if !self.is_signalling {
            if is_standing {
                self.begin(now);
            }
            return is_standing;
        }
        self.is_signalling = is_standing;
        let is_due = is_standing && now >= self.next;
        if is_due {
            self.count = self.count.saturating_add(1);
            self.next = self.after(self.next);
        }
        is_due
    }

    fn is_standing(&mut self, now: u64, waited: u64, few: bool) -> bool {
        if waited < TARGET || few {
            self.standing_at = None;
            return false;
        }
        let at = *self.standing_at.get_or_insert(now.saturating_add(INTERVAL));
        now >= at
    }

    /// Begins to signal. If that was necessary a short time ago, the rate of signals was about
    /// right.
    fn begin(&mut self, now: u64) {
        let recent = self.count.saturating_sub(self.first_count);
        let remembers = recent > 1 && now.saturating_sub(self.next) < MEMORY;
        self.count = if remembers { recent } else { 1 };
        self.first_count = self.count;
        self.is_signalling = true;
        self.next = self.after(now);
    }

    /// Returns the time of the signal after the one at `time`.
    fn after(&self, time: u64) -> u64 {
        let step = INTERVAL as f64 / f64::from(self.count.max(1)).sqrt();
        time.saturating_add(step as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Judges a packet every millisecond from `from` to `to`; returns the times of signals, in
    /// milliseconds.
    fn signals(codel: &mut Codel, from: u64, to: u64, waited: u64) -> Vec<u64> {
        let packets = from..to;
        packets
            .filter(|at| codel.signals(at * MS, waited, false))
            .collect()
    }

    #[test]
    fn a_burst_gets_no_signal() {
        let mut codel = Codel::default();
        assert_eq!(signals(&mut codel, 1000, 1100, 50 * MS), []);
        assert_eq!(signals(&mut codel, 1100, 1101, TARGET - 1), []);
        assert_eq!(signals(&mut codel, 1101, 1201, 50 * MS), []);
        assert_eq!(signals(&mut codel, 1201, 1202, 50 * MS), [1201]);
    }

    /// The intervals are 100 ms divided by the square root of the number of signals.
    #[test]
    fn a_standing_queue_gets_signals_ever_faster() {
        let mut codel = Codel::default();
        let times = signals(&mut codel, 0, 600, TARGET);
        assert_eq!(times, [100, 200, 271, 329, 379, 424, 464, 502, 538, 571]);
        // They stop at once when the queue is short.
        assert_eq!(signals(&mut codel, 600, 601, 0), []);
        assert_eq!(signals(&mut codel, 601, 701, TARGET), []);
        // The rate is remembered for 1.6 s.
        let times = signals(&mut codel, 701, 800, TARGET);
        assert_eq!(times, [701, 735, 766, 797]);
        assert_eq!(signals(&mut codel, 800, 801, 0), []);
        let times = signals(&mut codel, 2500, 2710, TARGET);
        assert_eq!(times, [2600, 2700]);
    }

    #[test]
    fn few_packets_get_no_signal() {
        let mut codel = Codel::default();
        for at in 0..1000 {
            assert!(!codel.signals(at * MS, 1000 * MS, true));
        }
    }

    #[test]
    fn extreme_times_are_harmless() {
        let mut codel = Codel {
            count: u32::MAX,
            ..Codel::default()
        };
        for at in [0, 1, u64::MAX, 5, u64::MAX] {
            codel.signals(at, u64::MAX, false);
        }
    }
}

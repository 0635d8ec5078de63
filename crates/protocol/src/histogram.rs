//! Durations, counted by ranges.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// Greatest durations of the ranges.
const BOUNDS: [Duration; 10] = [
    Duration::from_micros(100),
    Duration::from_micros(500),
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// Number of ranges; the last one is that of longer durations.
const RANGES: usize = BOUNDS.len() + 1;

/// Durations of one thread, counted by ranges.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Durations {
    counts: [u64; RANGES],
    microseconds: u64,
}

impl Durations {
    /// Greatest durations of the ranges.
    pub const BOUNDS: [Duration; BOUNDS.len()] = BOUNDS;

    /// Counts a duration.
    pub fn add(&mut self, duration: Duration) {
        let range = BOUNDS.iter().position(|bound| duration <= *bound);
        if let Some(count) = self.counts.get_mut(range.unwrap_or(BOUNDS.len())) {
            *count += 1;
        }
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.microseconds = self.microseconds.saturating_add(microseconds);
    }

    /// Returns the number of durations in each range, in the order of [`Durations::BOUNDS`]; the last
    /// one is that of longer durations.
    #[must_use]
    pub fn counts(&self) -> [u64; RANGES] {
        self.counts
    }

    /// Returns the sum of the durations, in microseconds.
    #[must_use]
    pub fn microseconds(&self) -> u64 {
        self.microseconds
    }

    /// Returns true if nothing has been counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts == [0; RANGES]
    }
}

/// Durations of all threads, counted by ranges.
#[derive(Default, Debug)]
pub struct Histogram {
    counts: [AtomicU64; RANGES],
    microseconds: AtomicU64,
}

impl Histogram {
    /// Adds durations that a thread has counted.
    pub fn add(&self, durations: &Durations) {
        for (sum, count) in self.counts.iter().zip(durations.counts) {
            if count > 0 {
                sum.fetch_add(count, Ordering::Relaxed);
            }
        }
        self.microseconds
            .fetch_add(durations.microseconds, Ordering::Relaxed);
    }

    /// Returns the durations so far.
    #[must_use]
    pub fn durations(&self) -> Durations {
        Durations {
            counts: self.counts.each_ref().map(|it| it.load(Ordering::Relaxed)),
            microseconds: self.microseconds.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Durations, Histogram};
    use core::time::Duration;

    #[test]
    fn each_duration_is_counted_in_its_range() {
        let mut durations = Durations::default();
        assert!(durations.is_empty());
        durations.add(Duration::ZERO);
        for bound in Durations::BOUNDS {
            durations.add(bound);
            durations.add(bound + Duration::from_nanos(1));
        }
        assert_eq!(durations.counts(), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
        let bounds = Durations::BOUNDS.iter();
        let sum: u128 = bounds.map(|bound| bound.as_micros() * 2).sum();
        assert_eq!(u128::from(durations.microseconds()), sum);
        let histogram = Histogram::default();
        histogram.add(&durations);
        assert_eq!(histogram.durations(), durations);
        histogram.add(&durations);
        assert_eq!(histogram.durations().counts()[0], 4);
    }

    #[test]
    fn ranges_are_in_order() {
        assert!(Durations::BOUNDS.is_sorted());
    }
}

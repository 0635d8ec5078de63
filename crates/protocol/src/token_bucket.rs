//! Rate limits.

use core::time::Duration;

use crate::time::Instant;

/// Token bucket: it gains `PER_SECOND` tokens per second and contains at most `BURST`. A new one
/// is full.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket<const PER_SECOND: u64, const BURST: u64> {
    /// The time at which the bucket is full. Until then it lacks one token for each
    /// [`Self::COST`]. Zero, as in a new bucket, is never later than now.
    full_at: Instant,
}

impl<const PER_SECOND: u64, const BURST: u64> TokenBucket<PER_SECOND, BURST> {
    /// Time in which the bucket gains one token.
    pub const COST: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND);
    /// Time in which an empty bucket fills.
    const FULL: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND * BURST);

    /// Takes a token. Returns false if there is none.
    #[must_use]
    pub fn take(&mut self, now: Instant) -> bool {
        let has_any = self.has_any(now);
        if has_any {
            self.full_at = self.after_one(now);
        }
        has_any
    }

    /// Returns true if the bucket contains a token.
    #[must_use]
    pub fn has_any(&self, now: Instant) -> bool {
        self.after_one(now) <= now + Self::FULL
    }

    /// Returns true if the bucket is full, and so equivalent to a new one.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }

    /// Returns the time at which the bucket is full if a token is taken now.
    fn after_one(&self, now: Instant) -> Instant {
        self.full_at.max(now) + Self::COST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(10_000_000_000);

    #[test]
    fn a_burst_then_one_token_at_a_time() {
        let mut bucket = TokenBucket::<20, 5>::default();
        assert!(bucket.is_full(START));
        assert_eq!((0..9).filter(|_| bucket.take(START)).count(), 5);
        assert!(!bucket.has_any(START));
        let next = START + Duration::from_millis(50);
        assert!(!bucket.take(next - Duration::from_nanos(1)));
        assert!(bucket.has_any(next));
        assert!(bucket.take(next));
        assert!(!bucket.take(next));
    }

    #[test]
    fn a_new_bucket_is_full_at_any_time() {
        for now in [0, 1, 100_000_000, 10_000_000_000].map(Instant) {
            let mut bucket = TokenBucket::<20, 5>::default();
            assert!(bucket.is_full(now));
            assert_eq!((0..9).filter(|_| bucket.take(now)).count(), 5, "{now:?}");
        }
    }

    #[test]
    fn it_fills_to_the_burst_and_no_further() {
        let mut bucket = TokenBucket::<20, 5>::default();
        while bucket.take(START) {}
        let full = START + Duration::from_millis(250);
        assert!(!bucket.is_full(full - Duration::from_nanos(1)));
        assert!(bucket.is_full(full));
        let later = START + Duration::from_secs(60);
        assert_eq!((0..9).filter(|_| bucket.take(later)).count(), 5);
    }
}

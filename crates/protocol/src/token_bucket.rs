//! Rate limits.

use core::time::Duration;

use crate::time::Instant;

/// Token bucket: it gains `PER_SECOND` tokens per second and contains at most `BURST`. A new one
/// is full.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket<const PER_SECOND: u64, const BURST: u64> {
    /// The time until which all tokens are spent. The balance is the time since then, in units of
    /// [`Self::COST`].
    spent_until: Instant,
}

impl<const PER_SECOND: u64, const BURST: u64> TokenBucket<PER_SECOND, BURST> {
    /// Time in which the bucket gains one token.
    pub const COST: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND);
    /// Time in which an empty bucket fills.
    const FULL: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND * BURST);

    /// Takes a token. Returns false if there is none.
    #[must_use]
    pub fn take(&mut self, now: Instant) -> bool {
        let spent = self.after_one(now);
        let has_any = spent <= now;
        if has_any {
            self.spent_until = spent;
        }
        has_any
    }

    /// Returns true if the bucket contains a token.
    #[must_use]
    pub fn has_any(&self, now: Instant) -> bool {
        self.after_one(now) <= now
    }

    /// Returns true if the bucket is full, and so equivalent to a new one.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.spent_until <= now - Self::FULL
    }

    fn after_one(&self, now: Instant) -> Instant {
        self.spent_until.max(now - Self::FULL) + Self::COST
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

//! What one source may ask of a device that is under load (whitepaper §5.3): a
//! token bucket per IPv4 address or IPv6 /64.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::limits::{MAX_SOURCES, SOURCE_BURST, SOURCE_PACKETS_PER_SECOND};
use crate::time::Instant;

const COST: u64 = 1_000_000_000 / SOURCE_PACKETS_PER_SECOND;
const FULL: u64 = COST * SOURCE_BURST;
/// A bucket is full again, and so the same as none, after this long.
const FORGET_AFTER: Duration = Duration::from_secs(1);

/// The buckets of all sources seen lately.
#[derive(Default)]
pub(crate) struct RateLimiter {
    buckets: BTreeMap<Source, Bucket>,
    swept: Instant,
}

struct Bucket {
    tokens: u64,
    filled: Instant,
}

impl RateLimiter {
    /// Whether one more handshake message from `address` may be worked on.
    /// A new source is refused while the table is full.
    pub(crate) fn allow(&mut self, now: Instant, address: IpAddr) -> bool {
        self.sweep(now);
        let source = Source::of(address);
        if let Some(bucket) = self.buckets.get_mut(&source) {
            let gained = u64::try_from(now.since(bucket.filled).as_nanos()).unwrap_or(FULL);
            bucket.tokens = bucket.tokens.saturating_add(gained).min(FULL);
            bucket.filled = now;
            let allowed = bucket.tokens >= COST;
            if allowed {
                bucket.tokens -= COST;
            }
            return allowed;
        }
        if self.buckets.len() >= MAX_SOURCES {
            return false;
        }
        self.buckets.insert(
            source,
            Bucket {
                tokens: FULL - COST,
                filled: now,
            },
        );
        true
    }

    /// Forgets full buckets, at most once a second, so that the cost per
    /// message stays small.
    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) >= FORGET_AFTER {
            self.swept = now;
            self.buckets
                .retain(|_, bucket| now.since(bucket.filled) < FORGET_AFTER);
        }
    }
}

/// An IPv4 address, or the half of an IPv6 address that names a network: its
/// owner has all of the other half.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    V4(u32),
    V6(u64),
}

impl Source {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(a) => Self::V4(a.into()),
            IpAddr::V6(a) => Self::V6((u128::from(a) >> 64) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(50_000_000_000);

    fn v4(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn burst_of_five_then_one_per_fiftieth_of_a_second() {
        let mut limiter = RateLimiter::default();
        for _ in 0..5 {
            assert!(limiter.allow(START, v4(1)));
        }
        assert!(!limiter.allow(START, v4(1)), "sixth at once");
        let almost = START + Duration::from_nanos(COST - 1);
        assert!(!limiter.allow(almost, v4(1)), "one nanosecond early");
        assert!(limiter.allow(START + Duration::from_nanos(COST), v4(1)));
        assert!(!limiter.allow(START + Duration::from_nanos(COST), v4(1)));
        assert!(limiter.allow(START, v4(2)), "another source has its own");
    }

    #[test]
    fn refills_to_the_burst_and_no_further() {
        let mut limiter = RateLimiter::default();
        for _ in 0..5 {
            limiter.allow(START, v4(1));
        }
        let later = START + Duration::from_millis(900);
        let allowed = (0..20).filter(|_| limiter.allow(later, v4(1))).count();
        assert_eq!(allowed, 5);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let mut limiter = RateLimiter::default();
        for host in 0..5_u16 {
            assert!(limiter.allow(START, IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host])));
        }
        assert!(!limiter.allow(START, IpAddr::from([0x2001, 0xdb8, 0, 1, 9, 9, 9, 9])));
        assert!(limiter.allow(START, IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, 0])));
    }

    #[test]
    fn the_table_is_capped_and_swept() {
        let mut limiter = RateLimiter::default();
        for n in 0..MAX_SOURCES as u32 {
            assert!(limiter.allow(START, IpAddr::from((0x0a00_0000 + n).to_be_bytes())));
        }
        assert!(!limiter.allow(START, v4(1)), "full");
        assert_eq!(limiter.buckets.len(), MAX_SOURCES);
        assert!(limiter.allow(START + FORGET_AFTER, v4(1)), "swept");
        assert_eq!(limiter.buckets.len(), 1);
    }
}

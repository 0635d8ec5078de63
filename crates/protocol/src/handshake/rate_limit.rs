//! Limits of a device under load (whitepaper §5.3).
//!
//! [`RateLimiter`] limits senders that have proven their address with a cookie: one token bucket
//! per IPv4 address or IPv6 /64. [`CookieLimiter`] limits cookie replies: a reply costs more than
//! the discovery that a cookie is missing, and the address of a sender without a cookie may be
//! forged.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::btree_map::{BTreeMap, Entry};

use siphasher::sip::SipHasher13;

use crate::Random;
use crate::limits::{
    COOKIE_BURST, COOKIES_PER_SECOND, MAC1_CHECKS_PER_SECOND, MAX_SOURCES,
    REPEATED_COOKIES_PER_SECOND, SOURCE_BURST, SOURCE_PACKETS_PER_SECOND,
};
use crate::time::Instant;
use crate::token_bucket::TokenBucket;

/// Interval between two searches for full buckets.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

type SourceBucket = TokenBucket<SOURCE_PACKETS_PER_SECOND, SOURCE_BURST>;

/// Token buckets of all recent sources.
#[derive(Default)]
pub(crate) struct RateLimiter {
    buckets: BTreeMap<Source, SourceBucket>,
    swept: Instant,
}

impl RateLimiter {
    /// Checks whether one more handshake message from `address` may be processed. A new source is
    /// refused while the table is full.
    pub(crate) fn allow(&mut self, now: Instant, address: IpAddr) -> bool {
        self.sweep(now);
        let is_full = self.buckets.len() >= MAX_SOURCES;
        match self.buckets.entry(Source::of(address)) {
            Entry::Vacant(_) if is_full => false,
            bucket => bucket.or_default().take(now),
        }
    }

    /// Removes full buckets, at most once a second, so that the cost per message stays small.
    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
        }
    }
}

/// An IPv4 address, or the /64 network of an IPv6 address: the owner of one address has the whole
/// network.
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

/// Limits cookie replies under load, and the mac1 checks of senders without a cookie.
///
/// Of the senders that ask for the first time, [`COOKIES_PER_SECOND`] get a cookie. As long as
/// there are cookies left, mac1 of [`MAC1_CHECKS_PER_SECOND`] messages is checked. A sender that does
/// not know this device's public key fails this check, and so uses up no cookies.
///
/// Beyond these limits, only senders that ask a second time, some 4 to 6 s after the first, get a
/// cookie. A genuine initiator does: its next initiation follows after Rekey-Timeout (5 s) and at
/// most a third of a second, from the same address and port. A flood from forged addresses would
/// have to repeat its addresses. If it does, all second requests together get
/// [`REPEATED_COOKIES_PER_SECOND`] cookies.
#[derive(Default)]
pub(crate) struct CookieLimiter {
    mac1_checks: TokenBucket<MAC1_CHECKS_PER_SECOND, COOKIE_BURST>,
    first: TokenBucket<COOKIES_PER_SECOND, COOKIE_BURST>,
    repeated: TokenBucket<REPEATED_COOKIES_PER_SECOND, COOKIE_BURST>,
    recent: Option<RecentSenders>,
}

/// The limit that a request for a cookie counts against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CookieGrant {
    /// Any sender, within the limit of first requests.
    First,
    /// A sender that has asked before.
    Repeated,
}

/// Length of a generation of remembered senders. A second initiation falls into the second or
/// third generation after that of the first.
const GENERATION: Duration = Duration::from_secs(2);

impl CookieLimiter {
    /// Checks a request for a cookie from `from`, before its message is read. Returns `None` if
    /// there is no cookie for this sender now; the sender is then remembered.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        from: SocketAddr,
        random: &mut dyn Random,
    ) -> Option<CookieGrant> {
        if self.first.has_any(now) && self.mac1_checks.take(now) {
            return Some(CookieGrant::First);
        }
        let generation = generation(now);
        let recent = &mut self.recent;
        let recent = recent.get_or_insert_with(|| RecentSenders::new(generation, random));
        recent.advance_to(generation);
        let tag = recent.tag(from);
        if recent.has_asked(tag) && self.repeated.has_any(now) {
            return Some(CookieGrant::Repeated);
        }
        // Senders that asked before are remembered again, so that their next request has the same
        // chance.
        recent.insert(tag);
        None
    }

    /// Counts a cookie for a sender that passed [`Self::check`] at `now` and has a valid mac1.
    pub(crate) fn grant(&mut self, now: Instant, grant: CookieGrant) {
        // Cannot fail: [`Self::check`] has found a cookie at the same time.
        let _ = match grant {
            CookieGrant::First => self.first.take(now),
            CookieGrant::Repeated => self.repeated.take(now),
        };
    }

    /// Frees the filters when all senders in them are too old to count.
    pub(crate) fn forget(&mut self, now: Instant) {
        let past = |recent: &RecentSenders| generation(now) > recent.generation + OLDEST;
        if self.recent.as_ref().is_some_and(past) {
            self.recent = None;
        }
    }
}

fn generation(now: Instant) -> u64 {
    now.0 / GENERATION.as_nanos() as u64
}

/// Age of the oldest generation remembered; the current one is 0.
const OLDEST: u64 = 3;

/// Bloom filters, one per generation, with four bits for each sender. All bits of a sender are in
/// one block, which is one cache line: in a flood, further cache misses would dominate the cost.
///
/// The filters take 2 MiB while the load lasts. At 100,000 senders per second, some 0.3 % of the
/// senders that ask for the first time are mistaken for ones that asked before. Such a sender
/// gets a cookie, at no cost to others.
struct RecentSenders {
    blocks: Vec<Block>,
    generation: u64,
    /// Secret and random, so that no sender can choose its bits.
    key: SipHasher13,
}

/// The bits of each generation, the current one first.
#[derive(Clone, Default)]
#[repr(align(64))]
struct Block([u128; OLDEST as usize + 1]);

impl RecentSenders {
    const BLOCKS: usize = 1 << 15;

    fn new(generation: u64, random: &mut dyn Random) -> Self {
        let mut key = [0; 16];
        random.fill(&mut key);
        Self {
            blocks: vec![Block::default(); Self::BLOCKS],
            generation,
            key: SipHasher13::new_with_key(&key),
        }
    }

    /// Returns a uniformly distributed number for the address and port.
    fn tag(&self, from: SocketAddr) -> u64 {
        let mut bytes = [0; 18];
        let [address @ .., high, low] = &mut bytes;
        *address = match from.ip() {
            IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
            IpAddr::V6(a) => a.octets(),
        };
        [*high, *low] = from.port().to_be_bytes();
        self.key.hash(&bytes)
    }

    fn advance_to(&mut self, generation: u64) {
        let turns = generation.saturating_sub(self.generation).min(OLDEST + 1);
        for _ in 0..turns {
            for Block(generations) in &mut self.blocks {
                generations.rotate_right(1);
                generations[0] = 0;
            }
        }
        self.generation = self.generation.max(generation);
    }

    fn insert(&mut self, tag: u64) {
        let (block, bits) = Self::block_and_bits(tag);
        self.blocks[block].0[0] |= bits;
    }

    /// Checks whether the sender asked in one of the two oldest generations.
    fn has_asked(&self, tag: u64) -> bool {
        let (block, bits) = Self::block_and_bits(tag);
        let Block([_, _, late, early]) = &self.blocks[block];
        [late, early].into_iter().any(|all| all & bits == bits)
    }

    /// Returns the index of a block, and four bits in it.
    fn block_and_bits(tag: u64) -> (usize, u128) {
        let bit = |shift: u32| 1_u128 << (tag >> shift & 127);
        let bits = bit(15) | bit(22) | bit(29) | bit(36);
        (tag as usize % Self::BLOCKS, bits)
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
        let almost = START + SourceBucket::COST - Duration::from_nanos(1);
        assert!(!limiter.allow(almost, v4(1)), "one nanosecond early");
        assert!(limiter.allow(START + SourceBucket::COST, v4(1)));
        assert!(!limiter.allow(START + SourceBucket::COST, v4(1)));
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
        assert!(limiter.allow(START + SWEEP_INTERVAL, v4(1)), "swept");
        assert_eq!(limiter.buckets.len(), 1);
    }

    struct Fixed;

    impl Random for Fixed {
        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.fill(7);
        }
    }

    fn asker(n: u64) -> SocketAddr {
        let [_, _, a, b, c, d, high, low] = n.to_be_bytes();
        (IpAddr::from([a, b, c, d]), u16::from_be_bytes([high, low])).into()
    }

    fn check(cookie_limiter: &mut CookieLimiter, now: Instant, n: u64) -> Option<CookieGrant> {
        cookie_limiter.check(now, asker(n), &mut Fixed)
    }

    /// Requests a cookie with a valid mac1. Returns `true` if one is granted.
    fn answer(cookie_limiter: &mut CookieLimiter, now: Instant, n: u64) -> bool {
        check(cookie_limiter, now, n)
            .map(|grant| cookie_limiter.grant(now, grant))
            .is_some()
    }

    const COOKIE_COST: Duration = TokenBucket::<COOKIES_PER_SECOND, COOKIE_BURST>::COST;

    /// Returns a limiter whose burst of first cookies is spent.
    fn drained(now: Instant) -> CookieLimiter {
        let mut cookie_limiter = CookieLimiter::default();
        for n in 0..COOKIE_BURST {
            assert!(answer(&mut cookie_limiter, now, u64::MAX - n));
        }
        cookie_limiter
    }

    #[test]
    fn saved_cookies_at_once_then_one_by_one() {
        let mut cookie_limiter = drained(START);
        assert!(!answer(&mut cookie_limiter, START, 1));
        let almost = START + COOKIE_COST - Duration::from_nanos(1);
        assert!(!answer(&mut cookie_limiter, almost, 2));
        assert!(answer(&mut cookie_limiter, START + COOKIE_COST, 3));
        assert!(!answer(&mut cookie_limiter, START + COOKIE_COST, 4));
    }

    #[test]
    fn who_asks_again_after_five_seconds_is_answered() {
        for start in (0..2_000).step_by(100).map(Duration::from_millis) {
            let mut now = START + start;
            let mut cookie_limiter = drained(now);
            assert!(!answer(&mut cookie_limiter, now, 1));
            assert!(!answer(&mut cookie_limiter, now, 1), "at once");
            for elapsed in [Duration::from_secs(5), Duration::from_millis(5_999)] {
                now = START + start + elapsed;
                while cookie_limiter.first.take(now) {}
                assert!(answer(&mut cookie_limiter, now, 1), "{start:?} {elapsed:?}");
                assert!(
                    !answer(&mut cookie_limiter, now, 2 + now.0),
                    "who has not asked"
                );
            }
            now = START + start + Duration::from_secs(8);
            while cookie_limiter.first.take(now) {}
            assert!(!answer(&mut cookie_limiter, now, 1), "forgotten");
        }
    }

    #[test]
    fn who_asks_again_costs_no_more_than_so_much() {
        let cookie_limiter = 1..COOKIE_BURST * 4;
        let mut all = drained(START);
        for n in cookie_limiter.clone() {
            assert!(!answer(&mut all, START, n));
        }
        let later = START + Duration::from_secs(5);
        while all.first.take(later) {}
        let given = |all: &mut CookieLimiter, now| {
            let given = cookie_limiter.clone().filter(|n| answer(all, now, *n));
            given.count() as u64
        };
        assert_eq!(given(&mut all, later), COOKIE_BURST);
        let first = COOKIES_PER_SECOND;
        let later = later + Duration::from_secs(1);
        assert_eq!(given(&mut all, later), first + REPEATED_COOKIES_PER_SECOND);
    }

    #[test]
    fn whoever_asks_again_without_a_right_mac1_takes_no_cookie() {
        let mut cookie_limiter = drained(START);
        assert_eq!(check(&mut cookie_limiter, START, 1), None);
        let later = START + Duration::from_secs(5);
        while cookie_limiter.first.take(later) {}
        for _ in 0..2 * COOKIE_BURST {
            assert_eq!(
                check(&mut cookie_limiter, later, 1),
                Some(CookieGrant::Repeated)
            );
        }
        assert!(answer(&mut cookie_limiter, later, 1));
    }

    #[test]
    fn who_does_not_know_the_public_key_takes_nobodys_cookie() {
        let mut cookie_limiter = CookieLimiter::default();
        for n in 0..COOKIE_BURST {
            assert_eq!(
                check(&mut cookie_limiter, START, n),
                Some(CookieGrant::First)
            );
        }
        assert_eq!(check(&mut cookie_limiter, START, 1), None, "not looked at");
        let later = START + Duration::from_secs(COOKIE_BURST / MAC1_CHECKS_PER_SECOND + 1);
        for n in 0..COOKIE_BURST {
            assert!(
                answer(&mut cookie_limiter, later, n),
                "all cookies are there"
            );
        }
    }

    #[test]
    fn who_asks_again_is_not_looked_at_while_there_is_no_cookie() {
        let mut cookie_limiter = drained(START);
        assert_eq!(check(&mut cookie_limiter, START, 1), None);
        let later = START + Duration::from_secs(5);
        while cookie_limiter.first.take(later) {}
        while cookie_limiter.repeated.take(later) {}
        assert_eq!(check(&mut cookie_limiter, later, 1), None);
        let one_more = later + TokenBucket::<REPEATED_COOKIES_PER_SECOND, COOKIE_BURST>::COST;
        assert_eq!(
            check(&mut cookie_limiter, one_more, 1),
            Some(CookieGrant::Repeated)
        );
    }

    #[test]
    fn who_is_refused_the_second_time_is_not_forgotten() {
        let mut cookie_limiter = drained(START);
        let mut now = START;
        assert!(!answer(&mut cookie_limiter, now, 1));
        for given in [false, false, true] {
            now += Duration::from_secs(5);
            while cookie_limiter.first.take(now) {}
            while !given && cookie_limiter.repeated.take(now) {}
            assert_eq!(answer(&mut cookie_limiter, now, 1), given);
        }
    }

    #[test]
    fn addresses_and_ports_are_told_apart() {
        let recent = RecentSenders::new(0, &mut Fixed);
        let tag = |address: &str| recent.tag(address.parse().unwrap());
        let first = tag("192.0.2.1:4500");
        assert_eq!(first, tag("192.0.2.1:4500"));
        for other in ["192.0.2.1:4501", "192.0.2.2:4500", "[2001:db8::1]:4500"] {
            assert_ne!(first, tag(other), "{other}");
        }
    }

    #[test]
    fn few_are_taken_for_others() {
        let mut cookie_limiter = drained(START);
        let (mut n, mut answered) = (0, 0);
        let seconds = 12;
        for millisecond in 0..seconds * 1_000 {
            let now = START + Duration::from_millis(millisecond);
            for _ in 0..100 {
                n += 1;
                answered += u64::from(answer(&mut cookie_limiter, now, n));
            }
        }
        let others = answered - seconds * COOKIES_PER_SECOND;
        assert!(others < n / 200, "{others} of {n}");
    }

    #[test]
    fn askers_are_forgotten_when_the_load_is_over() {
        let mut cookie_limiter = drained(START);
        assert!(
            cookie_limiter.recent.is_none(),
            "there was nobody to remember"
        );
        answer(&mut cookie_limiter, START, 1);
        cookie_limiter.forget(START + 3 * GENERATION);
        assert!(cookie_limiter.recent.is_some());
        cookie_limiter.forget(START + 4 * GENERATION);
        assert!(cookie_limiter.recent.is_none());
    }
}

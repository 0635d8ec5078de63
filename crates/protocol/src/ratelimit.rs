//! What a device that is under load does for whom (whitepaper §5.3).
//!
//! [`RateLimiter`]: whoever has shown a cookie, and so owns its address, has a token
//! bucket per IPv4 address or IPv6 /64. [`Askers`]: to give cookies costs more
//! than to find out that one is missing, and whoever is missing one may have made up
//! its address.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::limits::{
    COOKIE_BURST, COOKIES_PER_SECOND, MAX_SOURCES, SOURCE_BURST, SOURCE_PACKETS_PER_SECOND,
};
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

/// Decides who is given a cookie.
///
/// [`COOKIES_PER_SECOND`] are given to whoever asks. Beyond, one is given to who
/// asks a second time, 4 to 6 s or so after the first. Who initiates in earnest
/// does that: the next initiation comes Rekey-Timeout (5 s) and a third of a
/// second at most after the last, from the same address and port. Whoever floods
/// from made-up addresses would have to make up the same again.
#[derive(Default)]
pub(crate) struct Askers {
    /// When all cookies there are will have been spent.
    spent_until: Instant,
    remembered: Option<Remembered>,
}

/// What one cookie costs.
const COOKIE_COST: Duration = Duration::from_nanos(1_000_000_000 / COOKIES_PER_SECOND);
const COOKIE_SAVINGS: Duration = Duration::from_nanos(COOKIE_COST.as_nanos() as u64 * COOKIE_BURST);

/// Askers are remembered by generations of this. A second initiation falls into
/// the second or the third after that of the first.
const GENERATION: Duration = Duration::from_secs(2);

impl Askers {
    /// Whether the asker with that tag, evenly distributed, is given a cookie now.
    pub(crate) fn answer(&mut self, now: Instant, tag: u64) -> bool {
        let generation = now.0 / GENERATION.as_nanos() as u64;
        if let Some(remembered) = &mut self.remembered {
            remembered.turn_to(generation);
            if remembered.asked(tag) {
                return true;
            }
        }
        let given = self.spend(now);
        if !given {
            let remembered = &mut self.remembered;
            let remembered = remembered.get_or_insert_with(|| Remembered::new(generation));
            remembered.insert(tag);
        }
        given
    }

    /// Gives the memory back when nobody in it would be told from others.
    pub(crate) fn forget(&mut self, now: Instant) {
        let generation = now.0 / GENERATION.as_nanos() as u64;
        let past = |remembered: &Remembered| generation > remembered.generation + OLDEST;
        if self.remembered.as_ref().is_some_and(past) {
            self.remembered = None;
        }
    }

    fn spend(&mut self, now: Instant) -> bool {
        let spent = self.spent_until.max(now - COOKIE_SAVINGS) + COOKIE_COST;
        let room = spent <= now;
        if room {
            self.spent_until = spent;
        }
        room
    }
}

/// The oldest generation that is remembered; this one is 0.
const OLDEST: u64 = 3;

/// Bloom filters, one for each generation, with two bits for each asker. What
/// there is of one asker is in one block, which is one line of a processor's
/// cache: a flood would wait for memory otherwise.
///
/// 2 MiB, as long as the load lasts. At 100,000 askers a second, some 2 % of
/// those that come for the first time are taken for others. That gives them a
/// cookie, and costs nobody else one.
struct Remembered {
    blocks: Vec<Block>,
    generation: u64,
}

/// The bits of each generation, this one first.
#[derive(Clone, Default)]
#[repr(align(64))]
struct Block([u128; OLDEST as usize + 1]);

impl Remembered {
    const BLOCKS: usize = 1 << 15;

    fn new(generation: u64) -> Self {
        Self {
            blocks: vec![Block::default(); Self::BLOCKS],
            generation,
        }
    }

    fn turn_to(&mut self, generation: u64) {
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
        let (block, bits) = Self::place(tag);
        self.blocks[block].0[0] |= bits;
    }

    /// Whether it asked in one of the two oldest generations.
    fn asked(&self, tag: u64) -> bool {
        let (block, bits) = Self::place(tag);
        let Block([_, _, late, early]) = &self.blocks[block];
        [late, early].into_iter().any(|all| all & bits == bits)
    }

    /// A block, and two bits in it.
    fn place(tag: u64) -> (usize, u128) {
        let bit = |shift: u32| 1_u128 << (tag >> shift & 127);
        (tag as usize % Self::BLOCKS, bit(32) | bit(48))
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

    /// Who has asked for all the cookies that there are at once.
    fn drained(now: Instant) -> Askers {
        let mut askers = Askers::default();
        for tag in 0..COOKIE_BURST {
            assert!(askers.answer(now, spread(u64::MAX - tag)));
        }
        askers
    }

    /// Tags are distributed evenly (the finaliser of SplitMix64).
    fn spread(n: u64) -> u64 {
        let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ n >> 31
    }

    #[test]
    fn saved_cookies_at_once_then_one_by_one() {
        let mut askers = drained(START);
        assert!(!askers.answer(START, spread(1)));
        assert!(!askers.answer(START + COOKIE_COST - Duration::from_nanos(1), spread(2)));
        assert!(askers.answer(START + COOKIE_COST, spread(3)));
        assert!(!askers.answer(START + COOKIE_COST, spread(4)));
    }

    #[test]
    fn who_asks_again_after_five_seconds_is_answered() {
        for start in (0..2_000).step_by(100).map(Duration::from_millis) {
            let mut now = START + start;
            let mut askers = drained(now);
            assert!(!askers.answer(now, spread(1)));
            assert!(!askers.answer(now, spread(1)), "at once");
            for elapsed in [Duration::from_secs(5), Duration::from_millis(5_999)] {
                now = START + start + elapsed;
                while askers.spend(now) {}
                assert!(askers.answer(now, spread(1)), "{start:?} {elapsed:?}");
                assert!(!askers.answer(now, spread(2 + now.0)), "who has not asked");
            }
            now = START + start + Duration::from_secs(8);
            while askers.spend(now) {}
            assert!(!askers.answer(now, spread(1)), "forgotten");
        }
    }

    #[test]
    fn few_are_taken_for_others() {
        let mut askers = drained(START);
        let (mut tag, mut answered) = (0, 0);
        let seconds = 12;
        for millisecond in 0..seconds * 1_000 {
            let now = START + Duration::from_millis(millisecond);
            for _ in 0..100 {
                tag += 1;
                answered += u64::from(askers.answer(now, spread(tag)));
            }
        }
        let others = answered - seconds * COOKIES_PER_SECOND;
        assert!(others < tag / 40, "{others} of {tag}");
    }

    #[test]
    fn askers_are_forgotten_when_the_load_is_over() {
        let mut askers = drained(START);
        assert!(askers.remembered.is_none(), "there was nobody to remember");
        askers.answer(START, spread(1));
        askers.forget(START + 3 * GENERATION);
        assert!(askers.remembered.is_some());
        askers.forget(START + 4 * GENERATION);
        assert!(askers.remembered.is_none());
    }
}

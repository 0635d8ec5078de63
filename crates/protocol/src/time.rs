//! Time: a boot clock, read by the caller, and TAI64N timestamps for handshakes.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// Point in time on the machine's boot clock, in nanoseconds.
///
/// The clock must count while the machine sleeps (`CLOCK_BOOTTIME` on Linux), so that keys also
/// expire during suspend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// A point in time later than any deadline.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// Returns the time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, rhs: Duration) -> Self {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

/// Both clocks, read together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The boot clock, for all timers and ages.
    pub boot: Instant,
    /// The wall clock, as the time since the Unix epoch, for handshake timestamps and the "latest
    /// handshake" shown to users. It may jump in either direction.
    pub wall: Duration,
}

/// A TAI64N timestamp (whitepaper §5.1): 8 bytes of seconds and 4 of nanoseconds, big endian, so
/// that byte order is time order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tai64N(pub [u8; 12]);

/// TAI64 label of the Unix epoch. Label 2^62 is 1970-01-01 00:00:00 TAI; WireGuard adds a
/// constant 10 s to Unix time and ignores later leap seconds.
const TAI64_EPOCH: u64 = 0x4000_0000_0000_000a;

/// Timestamps are rounded down to multiples of 2^24 ns (16.8 ms), as in the kernel, so that they
/// do not reveal the host's precise clock.
const GRAIN_NANOS: u32 = 1 << 24;

impl Tai64N {
    /// Less than any timestamp that is sent.
    pub const ZERO: Self = Self([0; 12]);

    /// Returns the timestamp of a wall-clock time, rounded down to 2^24 ns.
    #[must_use]
    pub fn from_wall(wall: Duration) -> Self {
        let nanos = wall.subsec_nanos() & !(GRAIN_NANOS - 1);
        Self::from_parts(TAI64_EPOCH.saturating_add(wall.as_secs()), nanos)
    }

    /// Returns the next timestamp after this one: 2^24 ns later, or the next full second if that
    /// is no valid nanosecond count.
    #[must_use]
    pub fn successor(self) -> Self {
        let (seconds, nanos) = self.parts();
        let next = (nanos & !(GRAIN_NANOS - 1)).saturating_add(GRAIN_NANOS);
        if next >= 1_000_000_000 {
            Self::from_parts(seconds.saturating_add(1), 0)
        } else {
            Self::from_parts(seconds, next)
        }
    }

    /// Returns the timestamp `span` later, rounded down to 2^24 ns.
    #[must_use]
    pub fn later(self, span: Duration) -> Self {
        let (seconds, nanos) = self.parts();
        let total = Duration::new(0, nanos.min(999_999_999)) + span;
        Self::from_parts(
            seconds.saturating_add(total.as_secs()),
            total.subsec_nanos() & !(GRAIN_NANOS - 1),
        )
    }

    fn from_parts(seconds: u64, nanos: u32) -> Self {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&seconds.to_be_bytes());
        bytes[8..].copy_from_slice(&nanos.to_be_bytes());
        Self(bytes)
    }

    fn parts(self) -> (u64, u32) {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = self.0;
        (
            u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            u32::from_be_bytes([i, j, k, l]),
        )
    }
}

impl fmt::Debug for Tai64N {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = self.parts();
        write!(f, "@{seconds:016x}{nanos:08x}")
    }
}

//! Rates from two readings.

use crate::reading::{Bytes, ConnectionKey};
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// Counters of the reading before, by kind.
#[derive(Default, Debug)]
pub(super) struct Meters {
    clock: Option<Duration>,
    pub(super) peers: Meter<String>,
    pub(super) connections: Meter<ConnectionKey>,
    pub(super) drops: Meter<String>,
}

impl Meters {
    /// Begins a reading, and returns the time since the one before.
    pub(super) fn begin(&mut self, clock: Duration) -> Option<Duration> {
        let before = self.clock.replace(clock);
        self.peers.begin();
        self.connections.begin();
        self.drops.begin();
        before.and_then(|before| clock.checked_sub(before))
    }
}

/// Counters of two readings.
#[derive(Debug)]
pub(super) struct Meter<K> {
    before: HashMap<K, Bytes>,
    now: HashMap<K, Bytes>,
}

impl<K> Default for Meter<K> {
    fn default() -> Self {
        Self {
            before: HashMap::new(),
            now: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash> Meter<K> {
    fn begin(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Returns the rate per second. `None` on the first reading, and if a counter began again.
    /// `first` is the earlier value of a counter that the reading before does not have.
    pub(super) fn rate(
        &mut self,
        key: K,
        bytes: Bytes,
        elapsed: Option<Duration>,
        first: Option<Bytes>,
    ) -> Option<Bytes> {
        let before = self.before.get(&key).copied().or(first);
        self.now.insert(key, bytes);
        let (before, elapsed) = (before?, elapsed?);
        Some(Bytes {
            received: per_second(before.received, bytes.received, elapsed)?,
            sent: per_second(before.sent, bytes.sent, elapsed)?,
        })
    }
}

fn per_second(before: u64, after: u64, elapsed: Duration) -> Option<u64> {
    let more = u128::from(after.checked_sub(before)?);
    let rate = (more * 1000).checked_div(elapsed.as_millis())?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// Returns the sum of both directions.
pub(super) const fn sum(bytes: Bytes) -> u64 {
    bytes.received.saturating_add(bytes.sent)
}

/// Adds two amounts, of which at least one is known.
pub(super) fn add(one: Option<Bytes>, other: Option<Bytes>) -> Option<Bytes> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Bytes {
            received: one.received.saturating_add(other.received),
            sent: one.sent.saturating_add(other.sent),
        }),
        (known, None) | (None, known) => known,
    }
}

/// Returns the rate of a connection as a number to sort by: an unknown one is the lowest.
pub(super) fn rank(rate: Option<Bytes>) -> u64 {
    rate.map_or(0, |rate| sum(rate).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn bytes(received: u64, sent: u64) -> Bytes {
        Bytes { received, sent }
    }

    #[test]
    fn a_rate_takes_two_readings() {
        let mut meter = Meter::default();
        let (second, two) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(2)));
        assert_eq!(meter.rate("a", bytes(10, 20), None, None), None);
        meter.begin();
        let rate = meter.rate("a", bytes(110, 20), two, None);
        assert_eq!(rate, Some(bytes(50, 0)));
        // One that has begun since.
        assert_eq!(
            meter.rate("b", bytes(7, 9), second, Some(Bytes::default())),
            Some(bytes(7, 9))
        );
        meter.begin();
        // A device that was started again.
        assert_eq!(meter.rate("a", bytes(5, 20), second, None), None);
        assert_eq!(
            meter.rate("b", bytes(8, 9), Some(Duration::ZERO), None),
            None
        );
        meter.begin();
        meter.begin();
        assert_eq!(meter.rate("a", bytes(6, 20), second, None), None);
        assert!(meter.now.len() == 1 && meter.before.is_empty());
        assert_eq!(
            per_second(0, u64::MAX, Duration::from_millis(1)),
            Some(u64::MAX)
        );
    }
}

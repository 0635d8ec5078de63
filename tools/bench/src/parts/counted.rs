//! Round trips in the files of parts. They are counted by their times, so that distributions can be
//! joined.

use super::NamedPart;
use crate::measure::latency::RoundTrips;
use crate::results::Distribution;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taupe_lab::error::{Error, Result};

/// Largest number of round trips of one distribution, which limits the memory for them.
const MAX_ROUND_TRIPS: u64 = 50_000_000;

/// Round trips of one contestant in one distribution.
///
/// Times are rounded to three significant digits, as reports show them. This limits the number of
/// different times, and so the size of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedRoundTrips {
    /// Key of the distribution.
    pub metric: String,
    /// Id of the contestant.
    pub contestant: String,
    /// Number of lost round trips.
    pub lost: u64,
    /// Number of round trips by their time in nanoseconds.
    pub answered: BTreeMap<u64, u64>,
}

impl CountedRoundTrips {
    /// Counts round trips.
    pub fn new(metric: &str, contestant: &str, round_trips: &RoundTrips) -> Self {
        let mut answered = BTreeMap::new();
        for seconds in &round_trips.answered {
            *answered.entry(rounded(*seconds)).or_insert(0) += 1;
        }
        Self {
            metric: metric.to_owned(),
            contestant: contestant.to_owned(),
            lost: round_trips.lost,
            answered,
        }
    }

    fn round_trips(&self) -> Option<RoundTrips> {
        let counts = self.answered.values();
        let count = counts.fold(0_u64, |sum, count| sum.saturating_add(*count));
        if count.saturating_add(self.lost) > MAX_ROUND_TRIPS {
            return None;
        }
        let times = self.answered.iter().flat_map(|(nanoseconds, count)| {
            let seconds = *nanoseconds as f64 / 1e9;
            std::iter::repeat_n(seconds, *count as usize)
        });
        Some(RoundTrips {
            answered: times.collect(),
            lost: self.lost,
        })
    }
}

/// Rounds a time to nanoseconds and three significant digits.
fn rounded(seconds: f64) -> u64 {
    // The conversion saturates, so a huge time becomes `u64::MAX`.
    let nanoseconds = (seconds * 1e9).round() as u64;
    let digits = nanoseconds.checked_ilog10().unwrap_or(0);
    let unit = 10_u64.pow(digits.saturating_sub(2));
    (nanoseconds.saturating_add(unit / 2) / unit).saturating_mul(unit)
}

/// Returns the distributions of all parts together, in the order in which they appear.
pub(super) fn distributions(parts: &[&NamedPart]) -> Result<Vec<Distribution>> {
    let mut all: Vec<(&str, &str, RoundTrips)> = Vec::new();
    for named in parts {
        for counted in &named.part.round_trips {
            let round_trips = counted.round_trips().ok_or_else(|| Error::Malformed {
                what: named.name.clone(),
                why: format!(
                    "it has more than {MAX_ROUND_TRIPS} round trips for {}",
                    counted.metric
                ),
            })?;
            let (metric, contestant) = (&*counted.metric, &*counted.contestant);
            let mut known = all.iter_mut();
            match known.find(|known| (known.0, known.1) == (metric, contestant)) {
                Some(known) => known.2.extend(round_trips),
                None => all.push((metric, contestant, round_trips)),
            }
        }
    }
    let all = all.into_iter();
    Ok(all
        .map(|(metric, contestant, round_trips)| round_trips.distribution(metric, contestant))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_significant_digits() {
        for (seconds, expected) in [
            (0.0, 0),
            (7e-9, 7),
            (123.4e-9, 123),
            (123_456e-9, 123_000),
            (999_500e-9, 1_000_000),
            (0.123_45, 123_000_000),
            (f64::NAN, 0),
            (-1.0, 0),
        ] {
            assert_eq!(rounded(seconds), expected, "{seconds}");
        }
        // The counts must not overflow.
        rounded(f64::INFINITY);
    }

    #[test]
    fn round_trips_are_what_was_counted() {
        let found = RoundTrips {
            answered: vec![25.0e-6, 25.04e-6, 1.5e-3],
            lost: 2,
        };
        let counted = CountedRoundTrips::new("latency/idle", "taupe", &found);
        assert_eq!(counted.answered, [(25_000, 2), (1_500_000, 1)].into());
        let again = counted.round_trips().expect("few");
        assert_eq!((again.answered.len(), again.lost), (3, 2));
        assert!((again.answered[0] - 25e-6).abs() < 1e-12);
    }

    #[test]
    fn absurd_counts_are_refused() {
        let mut counted = CountedRoundTrips::new("latency/idle", "taupe", &RoundTrips::default());
        assert!(counted.round_trips().is_some());
        counted.answered = [(1, u64::MAX), (2, u64::MAX)].into();
        assert!(counted.round_trips().is_none());
        counted.answered.clear();
        counted.lost = u64::MAX;
        assert!(counted.round_trips().is_none());
    }
}

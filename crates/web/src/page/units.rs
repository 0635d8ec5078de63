//! Numbers as text.

use crate::facts::Times;
use std::time::Duration;

/// Formats a number of bytes as `taupe status` does, such as `1.5 MiB`.
pub(super) fn bytes(count: u64) -> String {
    scaled(
        count as f64,
        1024.0,
        &["B", "KiB", "MiB", "GiB", "TiB", "PiB"],
    )
}

/// Formats a rate in bits per second, such as `1.5 Mbit/s`.
pub(super) fn rate(bits: f64) -> String {
    scaled(
        bits,
        1000.0,
        &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter().peekable();
    let mut unit = units.next().unwrap_or(&"");
    let mut decimals = 0;
    // 999.95 would become `1000.0`.
    while value >= step - 0.05 {
        let Some(next) = units.next() else { break };
        (value, unit, decimals) = (value / step, next, 1);
    }
    format!("{value:.decimals$} {unit}")
}

/// Formats a duration in one unit: `3 min`.
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Formats a number of things, such as `2 peers`.
pub(super) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// Formats a short duration, such as `0.5 ms`.
pub(super) fn short(seconds: f64) -> String {
    match seconds {
        ..0.001 => format!("{:.0} µs", seconds * 1e6),
        0.001..1.0 => format!("{} ms", trimmed(seconds * 1e3)),
        _ => format!("{} s", trimmed(seconds)),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

fn total(times: &Times) -> u64 {
    times.counts.iter().copied().fold(0, u64::saturating_add)
}

/// Returns the bound of the range in which a share of durations ends, in words.
pub(super) fn within(times: &Times, share: f64) -> Option<String> {
    let total = total(times);
    if total == 0 {
        return None;
    }
    let wanted = (total as f64 * share).ceil();
    let mut sum = 0_u64;
    for (at, count) in times.counts.iter().enumerate() {
        sum = sum.saturating_add(*count);
        if sum as f64 >= wanted {
            return Some(match (times.bounds.get(at), times.bounds.last()) {
                (Some(bound), _) => format!("within {}", short(*bound)),
                (None, Some(last)) => format!("more than {}", short(*last)),
                (None, None) => return None,
            });
        }
    }
    None
}

/// Formats the mean of durations.
pub(super) fn mean(times: &Times) -> Option<String> {
    let total = total(times);
    (total > 0).then(|| short(times.seconds / total as f64))
}

/// Formats the time since an event.
pub(super) fn ago(now: u64, at: u64) -> String {
    let time = Duration::from_secs(now.saturating_sub(at));
    format!("{} ago", span(time.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        for (bits, text) in [
            (0.0, "0 bit/s"),
            (999.0, "999 bit/s"),
            (1500.0, "1.5 kbit/s"),
            (999_960.0, "1.0 Mbit/s"),
            (2.34e9, "2.3 Gbit/s"),
            (5e15, "5000.0 Tbit/s"),
        ] {
            assert_eq!(rate(bits), text);
        }
        assert_eq!([bytes(1023), bytes(1536)], ["1023 B", "1.5 KiB"]);
        assert_eq!(
            [0.0001, 0.0005, 0.002, 0.25, 5.0].map(short),
            ["100 µs", "500 µs", "2 ms", "250 ms", "5 s"]
        );
        assert_eq!([count(1, "peer"), count(0, "peer")], ["1 peer", "0 peers"]);
    }

    #[test]
    fn shares_of_durations() {
        let times = |counts: &[u64]| Times {
            bounds: vec![0.01, 0.1],
            counts: counts.into(),
            seconds: 1.0,
        };
        let half = |counts: &[u64]| within(&times(counts), 0.5);
        assert_eq!(half(&[0, 0, 0]), None);
        assert_eq!(half(&[1, 1, 0]).as_deref(), Some("within 10 ms"));
        assert_eq!(half(&[1, 2, 0]).as_deref(), Some("within 100 ms"));
        assert_eq!(half(&[0, 0, 1]).as_deref(), Some("more than 100 ms"));
        assert_eq!(half(&[u64::MAX, 1, 0]).as_deref(), Some("within 10 ms"));
        assert_eq!(mean(&times(&[2, 2, 0])).as_deref(), Some("250 ms"));
    }
}

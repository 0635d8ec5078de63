//! `clock_gettime(2)`.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::time::Duration;
use taupe_protocol::time::Instant;

pub(super) fn boot() -> Duration {
    since_epoch(clock_gettime(ClockId::Boottime))
}

thread_local! {
    /// The tick in which this thread last read the clock, and the value.
    static READ: Cell<(Duration, Instant)> = const { Cell::new((Duration::ZERO, Instant(0))) };
}

/// `CLOCK_MONOTONIC_COARSE` (Linux 2.6.32) is the time of the last tick. The kernel also advances it
/// when the machine goes to sleep. So while it is unchanged, the last value is at most a tick old.
pub(super) fn recent_boot() -> Instant {
    let tick = since_epoch(clock_gettime(ClockId::MonotonicCoarse));
    let (read_in, read) = READ.get();
    if read_in == tick && tick != Duration::ZERO {
        return read;
    }
    let now = super::boot();
    READ.set((tick, now));
    now
}

pub(super) fn wall() -> Duration {
    since_epoch(clock_gettime(ClockId::Realtime))
}

/// Returns the time for which the machine has slept since boot: the difference between
/// `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC`. The two are read one after the other, so it is not exact.
/// In a time namespace it has a constant offset.
#[must_use]
pub fn slept() -> Duration {
    let awake = since_epoch(clock_gettime(ClockId::Monotonic));
    since_epoch(clock_gettime(ClockId::Boottime)).saturating_sub(awake)
}

/// Returns the machine's `CLOCK_MONOTONIC`, which eBPF programs read (`bpf_ktime_get_ns`). In a
/// time namespace (time_namespaces(7), Linux 5.6) it differs from the value of `clock_gettime`.
#[must_use]
pub fn kernel_monotonic() -> Duration {
    let told = since_epoch(clock_gettime(ClockId::Monotonic));
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    without_offset(told, &offsets)
}

/// Subtracts the offset of a time namespace from `CLOCK_MONOTONIC`. `offsets` is the content of
/// `timens_offsets`: lines with a clock, seconds (which may be negative) and nanoseconds.
fn without_offset(told: Duration, offsets: &str) -> Duration {
    let mut words = offsets
        .lines()
        .find_map(|line| line.strip_prefix("monotonic"))
        .unwrap_or_default()
        .split_whitespace();
    let mut next = || words.next().and_then(|word| word.parse::<i64>().ok());
    let (seconds, nanoseconds) = (next().unwrap_or(0), next().unwrap_or(0));
    let offset = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let told = i128::try_from(told.as_nanos()).unwrap_or(i128::MAX);
    let kernel = told.saturating_sub(offset).clamp(0, i128::from(u64::MAX));
    Duration::from_nanos(u64::try_from(kernel).unwrap_or(u64::MAX))
}

/// Returns the CPU time of the calling thread (`CLOCK_THREAD_CPUTIME_ID`, Linux 2.6.12). Unlike the
/// other clocks it takes a system call.
#[must_use]
pub fn thread() -> Duration {
    since_epoch(clock_gettime(ClockId::ThreadCPUTime))
}

fn since_epoch(time: Timespec) -> Duration {
    Duration::try_from(time).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::{boot, since_epoch, thread, without_offset};
    use rustix::time::Timespec;
    use std::time::Duration;

    #[test]
    fn a_time_namespace_s_offset_is_taken_away() {
        let told = Duration::from_secs(1000);
        let initial = "monotonic           0         0\nboottime            0         0\n";
        assert_eq!(without_offset(told, initial), told);
        assert_eq!(without_offset(told, ""), told);
        let later = "monotonic         600 500000000\nboottime            7         0\n";
        assert_eq!(without_offset(told, later), Duration::from_millis(399_500));
        // The kernel keeps nanoseconds positive: this is -0.5 s.
        let earlier = "monotonic          -1 500000000\n";
        assert_eq!(
            without_offset(told, earlier),
            Duration::from_millis(1_000_500)
        );
        let beyond = "monotonic        2000         0\n";
        assert_eq!(without_offset(told, beyond), Duration::ZERO);
    }

    #[test]
    fn a_thread_s_clock_stands_while_it_sleeps() {
        let pause = Duration::from_millis(200);
        let before = thread();
        std::thread::sleep(pause);
        let slept = thread() - before;
        assert!(slept < pause / 2, "{slept:?}");
        let (start, before) = (std::time::Instant::now(), thread());
        while thread() - before < Duration::from_millis(10) {
            assert!(start.elapsed() < Duration::from_secs(60), "it stands");
        }
    }

    #[test]
    fn the_boot_clock_is_not_below_the_kernel_s_uptime() {
        // `/proc/uptime` is CLOCK_BOOTTIME, truncated to hundredths of a second.
        let text = std::fs::read_to_string("/proc/uptime").expect("uptime");
        let seconds: f64 = text
            .split(' ')
            .next()
            .expect("field")
            .parse()
            .expect("number");
        let boot = boot();
        assert!(boot >= Duration::from_secs_f64(seconds));
        assert!(boot < Duration::from_secs_f64(seconds + 60.0));
    }

    #[test]
    fn a_clock_before_1970_reads_as_zero() {
        let time = Timespec {
            tv_sec: -1,
            tv_nsec: 999_999_999,
        };
        assert_eq!(since_epoch(time), Duration::ZERO);
    }
}

//! Linux: `clock_gettime(2)`, glibc's heap, marks of sockets.

#[cfg(feature = "driver")]
pub use taupe_os_linux::memory::{release, share_heap};

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::time::Duration;
use taupe_protocol::time::Instant;

pub(crate) fn boot() -> Instant {
    let boot = since_epoch(clock_gettime(ClockId::Boottime));
    Instant(u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX))
}

thread_local! {
    /// The tick in which this thread last read the clock, and the value.
    static READ: Cell<(Duration, Instant)> = const { Cell::new((Duration::ZERO, Instant(0))) };
}

/// `CLOCK_MONOTONIC_COARSE` (Linux 2.6.32) is the time of the last tick. The kernel also advances it
/// when the machine goes to sleep. So while it is unchanged, the last value is at most a tick old.
pub(crate) fn recent_boot() -> Instant {
    let tick = since_epoch(clock_gettime(ClockId::MonotonicCoarse));
    let (read_in, read) = READ.get();
    if read_in == tick && tick != Duration::ZERO {
        return read;
    }
    let now = boot();
    READ.set((tick, now));
    now
}

pub(crate) fn wall() -> Duration {
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
    let time = since_epoch(clock_gettime(ClockId::Monotonic));
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    without_offset(time, &offsets)
}

/// Subtracts the offset of a time namespace from `CLOCK_MONOTONIC`. `offsets` is the content of
/// `timens_offsets`: lines with a clock, seconds (which may be negative) and nanoseconds.
fn without_offset(time: Duration, offsets: &str) -> Duration {
    let mut words = offsets
        .lines()
        .find_map(|line| line.strip_prefix("monotonic"))
        .unwrap_or_default()
        .split_whitespace();
    let mut next = || words.next().and_then(|word| word.parse::<i64>().ok());
    let (seconds, nanoseconds) = (next().unwrap_or(0), next().unwrap_or(0));
    let offset = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let time = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
    let kernel = time.saturating_sub(offset).clamp(0, i128::from(u64::MAX));
    Duration::from_nanos(u64::try_from(kernel).unwrap_or(u64::MAX))
}

/// Returns the CPU time of the calling thread (`CLOCK_THREAD_CPUTIME_ID`, Linux 2.6.12). Unlike the
/// other clocks it takes a system call.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    since_epoch(clock_gettime(ClockId::ThreadCPUTime))
}

/// Sets the mark of a socket, unless it is 0: that needs no `CAP_NET_ADMIN`.
#[cfg(feature = "driver")]
pub(crate) fn set_mark(socket: &std::net::UdpSocket, mark: u32) -> std::io::Result<()> {
    match mark {
        0 => Ok(()),
        mark => socket2::SockRef::from(socket).set_mark(mark),
    }
}

fn since_epoch(time: Timespec) -> Duration {
    Duration::try_from(time).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::{boot, since_epoch, thread_cpu_time, without_offset};
    use rustix::time::Timespec;
    use std::time::Duration;

    #[test]
    fn the_offset_of_a_time_namespace_is_subtracted() {
        let time = Duration::from_secs(1000);
        let initial = "monotonic           0         0\nboottime            0         0\n";
        assert_eq!(without_offset(time, initial), time);
        assert_eq!(without_offset(time, ""), time);
        let later = "monotonic         600 500000000\nboottime            7         0\n";
        assert_eq!(without_offset(time, later), Duration::from_millis(399_500));
        // The kernel keeps nanoseconds positive: this is -0.5 s.
        let earlier = "monotonic          -1 500000000\n";
        assert_eq!(
            without_offset(time, earlier),
            Duration::from_millis(1_000_500)
        );
        let beyond = "monotonic        2000         0\n";
        assert_eq!(without_offset(time, beyond), Duration::ZERO);
    }

    #[test]
    fn the_cpu_time_of_a_thread_stands_while_it_sleeps() {
        let pause = Duration::from_millis(200);
        let before = thread_cpu_time();
        std::thread::sleep(pause);
        let slept = thread_cpu_time() - before;
        assert!(slept < pause / 2, "{slept:?}");
        let (start, before) = (std::time::Instant::now(), thread_cpu_time());
        while thread_cpu_time() - before < Duration::from_millis(10) {
            assert!(start.elapsed() < Duration::from_secs(60), "it stands");
        }
    }

    #[test]
    fn the_boot_clock_is_not_below_the_uptime() {
        // `/proc/uptime` is CLOCK_BOOTTIME, truncated to hundredths of a second.
        let text = std::fs::read_to_string("/proc/uptime").expect("uptime");
        let seconds: f64 = text
            .split(' ')
            .next()
            .expect("field")
            .parse()
            .expect("number");
        let boot = Duration::from_nanos(boot().0);
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

//! The two clocks of the protocol.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as imp;
#[cfg(target_os = "linux")]
pub use linux::{kernel_monotonic, slept, thread};

#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(not(target_os = "linux"))]
use other as imp;

use taupe_protocol::time::{Instant, Now};

/// Reads both clocks, one after the other.
///
/// The boot clock never jumps. On Linux it is `CLOCK_BOOTTIME` (2.6.39), which goes on while
/// the machine sleeps, so that keys expire during suspend too; for 584 years it fits.
/// Elsewhere it is [`std::time::Instant`], counted from its first reading: on
/// Windows that goes on too (`QueryPerformanceCounter`); where it does not, keys live as much
/// longer. The wall clock may jump either way; one that is set before 1970 reads as zero.
#[must_use]
pub fn now() -> Now {
    let wall = imp::wall();
    Now { boot: boot(), wall }
}

/// Reads the boot clock alone. The packet path uses it.
#[must_use]
pub fn boot() -> Instant {
    Instant(u64::try_from(imp::boot().as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the boot clock as this thread has read it last, if the system's timer has not ticked
/// since: late by a tick of 1 to 10 ms, or by more where that timer is held up, as in a
/// virtual machine with a processor that waits for its turn. On Linux it takes 3 ns where the
/// clock takes 22 (Zen 5); after the machine has slept the clock is read anew. Elsewhere it is the
/// clock.
#[must_use]
pub fn recent_boot() -> Instant {
    imp::recent_boot()
}

#[cfg(test)]
mod tests {
    use super::{Instant, boot, now, recent_boot};
    use std::time::{Duration, SystemTime};

    #[test]
    fn the_boot_clock_advances_by_what_was_slept() {
        let pause = Duration::from_millis(20);
        let before = now().boot;
        std::thread::sleep(pause);
        let after = now().boot;
        assert!(before > Instant(0), "zero is before everything");
        assert!(after.since(before) >= pause);
    }

    #[test]
    fn the_recent_clock_follows_and_is_never_ahead() {
        let began = boot();
        let mut last = recent_boot();
        while boot() < began + Duration::from_millis(100) {
            let recent = recent_boot();
            assert!(last <= recent && recent <= boot());
            last = recent;
        }
        // Ticks are 10 ms apart at most, but on a busy machine a thread may wait.
        std::thread::sleep(Duration::from_millis(50));
        assert!(recent_boot() > last);
    }

    #[test]
    fn the_wall_clock_is_the_system_s() {
        let unix = || SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
        let before = unix();
        let wall = now().wall;
        assert!(before <= wall && wall <= unix());
    }
}

//! The two clocks of the protocol.

use crate::system;
use taupe_protocol::time::{Instant, Now};

/// Reads both clocks, one after the other.
///
/// The boot clock never jumps. On Linux it is `CLOCK_BOOTTIME` (2.6.39), which continues while the
/// machine sleeps, so that keys expire during suspend too. It lasts for 584 years. On other systems
/// it is [`std::time::Instant`], counted from its first reading. On Windows this continues during
/// sleep (`QueryPerformanceCounter`). On a system where it stops, the sleep extends the lifetime of
/// keys. The wall clock may jump forwards and backwards. A time before 1970 reads as zero.
#[must_use]
pub fn now() -> Now {
    let wall = system::wall();
    Now { boot: boot(), wall }
}

/// Reads only the boot clock, for the packet path.
#[must_use]
pub fn boot() -> Instant {
    system::boot()
}

/// Returns a recent value of the boot clock, which is cheaper to get than the present one.
///
/// On Linux this is the value that this thread read last, if the system's timer has not ticked
/// since. It is late by up to a tick of 1 to 10 ms, or by more if the tick is delayed, for example
/// in a virtual machine whose processor is not scheduled. After the machine has slept, the clock is
/// read again. On other systems this is the same as [`boot`].
#[must_use]
pub fn recent_boot() -> Instant {
    system::recent_boot()
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
        // A tick takes 10 ms at most, but on a busy machine a thread may wait for longer.
        std::thread::sleep(Duration::from_millis(50));
        assert!(recent_boot() > last);
    }

    #[test]
    fn the_wall_clock_equals_the_system_clock() {
        let unix = || SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
        let before = unix();
        let wall = now().wall;
        assert!(before <= wall && wall <= unix());
    }
}

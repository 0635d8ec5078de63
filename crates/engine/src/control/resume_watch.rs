//! Detection of a machine that has slept.
//!
//! The kernel cancels a timer on the wall clock when that clock is set (timerfd_create(2),
//! `TFD_TIMER_CANCEL_ON_SET`, Linux 3.0). Waking up from sleep counts as setting it. To tell sleep
//! from other changes of the wall clock, the module compares two other clocks: the boot clock
//! continues during sleep and the monotonic clock does not, so their difference grows. This needs
//! no system service and no polling, and it works in containers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// The shortest sleep that counts. A smaller difference may come from reading the two clocks one
/// after the other.
const SHORTEST: Duration = Duration::from_millis(500);

pub(crate) struct ResumeWatch {
    clock: OwnedFd,
    /// Total sleep of the machine at the last check.
    slept: Duration,
    read: fn() -> Duration,
}

impl ResumeWatch {
    pub(crate) fn new() -> Result<Self, Errno> {
        Self::by(taupe_runtime::system::slept)
    }

    fn by(read: fn() -> Duration) -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let resume_watch = Self {
            clock: timerfd_create(TimerfdClockId::Realtime, flags)?,
            slept: read(),
            read,
        };
        resume_watch.watch()?;
        Ok(resume_watch)
    }

    /// Returns a descriptor that becomes readable when [`Self::has_slept`] should be called.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.clock.as_fd()
    }

    /// Returns true if the machine has slept since the last call.
    pub(crate) fn has_slept(&mut self) -> bool {
        // The read fails with ECANCELED, which is expected.
        let _ = rustix::io::read(&self.clock, &mut [0_u8; 8]);
        if let Err(error) = self.watch() {
            tracing::warn!(%error, "that the machine has slept will not be noticed");
        }
        let slept = (self.read)();
        let before = std::mem::replace(&mut self.slept, slept);
        slept.saturating_sub(before) >= SHORTEST
    }

    fn watch(&self) -> Result<(), Errno> {
        let never = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            },
        };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&self.clock, flags, &never).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static SLEPT: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn only_sleep_since_the_last_check_counts() {
        SLEPT.store(7_000, Ordering::Relaxed);
        let read = || Duration::from_millis(SLEPT.load(Ordering::Relaxed));
        let mut resume_watch = ResumeWatch::by(read).expect("a timer");
        assert!(!resume_watch.has_slept());
        for (total, has_slept) in [
            (7_499, false),
            (7_999, true),
            (7_999, false),
            // The clocks are read one after the other, so the difference may shrink.
            (7_998, false),
            (20_000, true),
        ] {
            SLEPT.store(total, Ordering::Relaxed);
            assert_eq!(resume_watch.has_slept(), has_slept, "{total} ms");
        }
    }

    #[test]
    fn this_machine_has_not_slept_just_now() {
        let mut resume_watch = ResumeWatch::new().expect("a timer");
        assert!(!resume_watch.has_slept());
    }
}

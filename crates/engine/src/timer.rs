//! The control loop's timer.

use std::os::fd::OwnedFd;

use rustix::io::Errno as SystemError;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use taupe_protocol::time::Instant;

/// A timerfd on the boot clock, which continues while the machine sleeps.
pub(crate) struct Timer {
    pub(crate) fd: OwnedFd,
    set: Option<Instant>,
}

impl Timer {
    pub(crate) fn new() -> Result<Self, SystemError> {
        Ok(Self {
            fd: timerfd_create(
                TimerfdClockId::Boottime,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
            set: None,
        })
    }

    pub(crate) fn set(&mut self, deadline: Option<Instant>) -> Result<(), SystemError> {
        if self.set == deadline {
            return Ok(());
        }
        // Zero would disarm the timer. Such a deadline is in the past, as one nanosecond is.
        let nanos = deadline.map_or(0, |Instant(nanos)| nanos.max(1));
        let value = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(nanos),
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &value)?;
        self.set = deadline;
        Ok(())
    }

    pub(crate) fn expired(&mut self) {
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        self.set = None;
    }
}

pub(crate) fn timespec(nanos: u64) -> Timespec {
    Timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    }
}

//! The clocks of tunnels. Tests can advance them.

use core::time::Duration;

use taupe_protocol::time::{Instant, Now};
use taupe_runtime::clock;

/// Reads both clocks.
pub(crate) fn now() -> Now {
    let now = clock::now();
    #[cfg(test)]
    let now = Now {
        boot: now.boot + SKIPPED.get(),
        wall: now.wall + SKIPPED.get(),
    };
    now
}

pub(crate) fn boot() -> Instant {
    skipped(clock::boot())
}

/// Returns the boot clock, late by up to a tick of the system's timer, for the packet path. A
/// session may live that much longer, and a timer that a packet starts may expire that much
/// earlier.
pub(crate) fn recent_boot() -> Instant {
    skipped(clock::recent_boot())
}

fn skipped(boot: Instant) -> Instant {
    #[cfg(test)]
    let boot = boot + SKIPPED.get();
    boot
}

#[cfg(test)]
thread_local! {
    static SKIPPED: core::cell::Cell<Duration> = const { core::cell::Cell::new(Duration::ZERO) };
}

/// Advances the clock of this thread.
#[cfg(test)]
pub(crate) fn skip(time: Duration) {
    SKIPPED.set(SKIPPED.get() + time);
}

pub(crate) fn after(now: Instant, seconds: u16) -> Instant {
    now + Duration::from_secs(seconds.into())
}

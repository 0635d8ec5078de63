//! The clocks and the randomness of tunnels.

use core::time::Duration;

use taupe_protocol::Random;
use taupe_protocol::time::{Instant, Now};

/// Both clocks.
pub(crate) fn now() -> Now {
    let (boot, wall) = taupe_runtime::clock::now();
    let boot = Instant(boot);
    #[cfg(test)]
    let (boot, wall) = (boot + SKIPPED.get(), wall + SKIPPED.get());
    Now { boot, wall }
}

/// The first of them alone.
pub(crate) fn boot() -> Instant {
    skipped(taupe_runtime::clock::boot())
}

/// The same, late by a tick of the system's timer: for the way of a packet. A session may live as
/// much longer, and what is due some time after a packet be as much early.
pub(crate) fn recent_boot() -> Instant {
    skipped(taupe_runtime::clock::recent_boot())
}

fn skipped(boot: u64) -> Instant {
    let boot = Instant(boot);
    #[cfg(test)]
    let boot = boot + SKIPPED.get();
    boot
}

#[cfg(test)]
thread_local! {
    static SKIPPED: core::cell::Cell<Duration> = const { core::cell::Cell::new(Duration::ZERO) };
}

/// Puts the clock of this thread forward.
#[cfg(test)]
pub(crate) fn skip(time: Duration) {
    SKIPPED.set(SKIPPED.get() + time);
}

/// So many seconds later.
pub(crate) fn after(now: Instant, seconds: u16) -> Instant {
    now + Duration::from_secs(seconds.into())
}

/// The operating system's randomness.
pub(crate) struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        taupe_runtime::random::fill(bytes);
    }
}

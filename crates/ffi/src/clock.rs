//! The clocks and the randomness of tunnels.

use core::time::Duration;
use std::io::Write as _;

use taupe_protocol::Random;
use taupe_protocol::time::{Instant, Now};

/// Both clocks. The first goes on while the machine sleeps on Linux, and on Windows; where
/// it does not, keys live as much longer.
pub(crate) fn now() -> Now {
    let wall = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let wall = wall.unwrap_or_default();
    #[cfg(test)]
    let wall = wall + SKIPPED.get();
    Now { boot: boot(), wall }
}

/// The first of them alone: for the way of a packet.
pub(crate) fn boot() -> Instant {
    #[cfg(test)]
    return read() + SKIPPED.get();
    #[cfg(not(test))]
    read()
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

#[cfg(target_os = "linux")]
fn read() -> Instant {
    Instant(taupe_sys::clock::boot())
}

#[cfg(not(target_os = "linux"))]
fn read() -> Instant {
    use std::sync::OnceLock;
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    // A second less than now: zero is before everything.
    let boot = START.get_or_init(std::time::Instant::now).elapsed() + Duration::from_secs(1);
    Instant(u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX))
}

/// So many seconds later.
pub(crate) fn after(now: Instant, seconds: u16) -> Instant {
    now + Duration::from_secs(seconds.into())
}

/// The operating system's randomness.
pub(crate) struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        if let Err(error) = getrandom::fill(bytes) {
            // Every key made without it could be guessed. Not `eprintln`, which panics
            // when standard error is a closed pipe.
            let _ = writeln!(
                std::io::stderr(),
                "taupe: the system gives no randomness ({error}), so the process ends"
            );
            std::process::abort();
        }
    }
}

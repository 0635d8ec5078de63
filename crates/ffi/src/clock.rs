//! The clocks and the randomness of tunnels.

use core::time::Duration;
use std::io::Write as _;

use taupe_protocol::Random;
use taupe_protocol::time::{Instant, Now};

/// Both clocks. The first goes on while the machine sleeps on Linux, and on Windows; where
/// it does not, keys live as much longer.
pub(crate) fn now() -> Now {
    let wall = std::time::SystemTime::UNIX_EPOCH.elapsed();
    Now {
        boot: boot(),
        wall: wall.unwrap_or_default(),
    }
}

/// The first of them alone: for the way of a packet.
#[cfg(target_os = "linux")]
pub(crate) fn boot() -> Instant {
    Instant(taupe_sys::clock::boot())
}

/// The first of them alone: for the way of a packet.
#[cfg(not(target_os = "linux"))]
pub(crate) fn boot() -> Instant {
    use std::sync::OnceLock;
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    // A second less than now: zero is before everything.
    let boot = START.get_or_init(std::time::Instant::now).elapsed() + Duration::from_secs(1);
    Instant(u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX))
}

/// When what is due after `time` is due.
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

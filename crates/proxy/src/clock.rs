//! The clocks and the randomness of the protocol.

use core::time::Duration;
use taupe_protocol::Random;
use taupe_protocol::time::{Instant, Now};

/// Both clocks. The first goes on while the machine sleeps on Linux, and on Windows; where
/// it does not, keys live as much longer.
pub(crate) fn now() -> Now {
    let (boot, wall) = read();
    Now {
        boot: Instant(boot),
        wall,
    }
}

#[cfg(target_os = "linux")]
fn read() -> (u64, Duration) {
    taupe_sys::clock::now()
}

#[cfg(not(target_os = "linux"))]
fn read() -> (u64, Duration) {
    use std::sync::OnceLock;
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    // A second less than now: zero is before everything.
    let start = START.get_or_init(std::time::Instant::now);
    let boot = start.elapsed() + Duration::from_secs(1);
    let wall = std::time::SystemTime::UNIX_EPOCH.elapsed();
    (
        u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX),
        wall.unwrap_or_default(),
    )
}

/// The operating system's randomness.
pub(crate) struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        if let Err(error) = getrandom::fill(bytes) {
            // Every key made without it could be guessed.
            tracing::error!(%error, "the system gives no randomness, so the process ends");
            std::process::abort();
        }
    }
}

/// A random number.
pub(crate) fn random() -> u32 {
    SystemRandom.number()
}

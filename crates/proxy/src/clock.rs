//! The clocks and the randomness of the protocol.

use taupe_protocol::Random;
use taupe_protocol::time::{Instant, Now};

/// Both clocks.
pub(crate) fn now() -> Now {
    let (boot, wall) = taupe_runtime::clock::now();
    Now {
        boot: Instant(boot),
        wall,
    }
}

/// The operating system's randomness.
pub(crate) struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        taupe_runtime::random::fill(bytes);
    }
}

/// A random number.
pub(crate) fn random() -> u32 {
    SystemRandom.number()
}

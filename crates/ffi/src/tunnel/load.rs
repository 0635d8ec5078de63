//! Whether handshake messages come faster than a tunnel cares to answer them.

use core::time::Duration;

use taupe_protocol::limits::UNDER_LOAD_LATCH;
use taupe_protocol::time::Instant;

/// Handshake messages in a second that are answered without more ado, as boringtun has it.
const PER_SECOND: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Counts the handshake messages that show this side's public key.
#[derive(Default)]
pub(super) struct Load {
    since: Instant,
    count: u32,
    until: Instant,
}

impl Load {
    pub(super) fn count(&mut self, now: Instant) {
        if now.since(self.since) >= SECOND {
            self.since = now;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        if self.count >= PER_SECOND {
            self.until = now + SECOND;
        }
    }

    /// Whether who can be reached must first show that they are.
    pub(super) fn is_high(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Whether who cannot be reached is refused. As long as the device demands cookies:
    /// one for nobody's address would prove nothing.
    pub(super) fn refuses_unknown(&self, now: Instant) -> bool {
        now < self.until + UNDER_LOAD_LATCH && self.until != Instant::default()
    }
}

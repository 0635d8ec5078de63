//! Detection of load: handshake messages arrive faster than the tunnel answers them.

use core::time::Duration;

use taupe_protocol::limits::UNDER_LOAD_DURATION;
use taupe_protocol::time::Instant;

/// Handshake messages in a second that are answered without a cookie, as in boringtun.
const PER_SECOND: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Counter of handshake messages whose sender knows this side's public key.
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

    /// Returns true if a sender with a known address needs a cookie.
    pub(super) fn is_high(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Returns true if messages without a source address are refused. This lasts as long as the
    /// device requires cookies, because without an address a cookie would prove nothing.
    pub(super) fn refuses_unknown(&self, now: Instant) -> bool {
        now < self.until + UNDER_LOAD_DURATION && self.until != Instant::default()
    }
}

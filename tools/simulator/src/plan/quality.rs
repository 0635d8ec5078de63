//! The quality of a link.

use super::{MILLISECOND, Nanos, SECOND};

/// Properties of a link in each direction. Rates are per thousand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quality {
    /// Transit time.
    pub delay: Nanos,
    /// Largest additional delay, drawn for every datagram, which reorders them.
    pub jitter: Nanos,
    /// Rate of losses.
    pub loss: u16,
    /// Rate of duplicates.
    pub duplicate: u16,
    /// Rate of datagrams with a flipped bit.
    pub corrupt: u16,
    /// Rate of truncated datagrams.
    pub truncate: u16,
    /// Rate of datagrams delayed by up to five minutes.
    pub long_delay: u16,
}

impl Quality {
    /// A good network.
    pub const GOOD: Self = Self {
        delay: 20 * MILLISECOND,
        jitter: 0,
        loss: 0,
        duplicate: 0,
        corrupt: 0,
        truncate: 0,
        long_delay: 0,
    };

    /// Returns true if all datagrams arrive soon and unchanged.
    #[must_use]
    pub fn delivers(&self) -> bool {
        self.loss == 0
            && self.corrupt == 0
            && self.truncate == 0
            && self.long_delay == 0
            && self.delay + self.jitter <= SECOND / 2
    }
}

//! Lanes: how one device uses many cores.
//!
//! A lane carries packets by itself. It sends messages with its own class of counters, and
//! receives the messages whose receiver index and counter select it. So two
//! lanes share nothing that they write for each packet, and a flow stays on one lane from end to
//! end. docs/design/lanes.md describes the design.
//!
//! | module | contents |
//! |---|---|
//! | `counters` | the counters of each lane, and the lane of a counter |
//! | `steering` | the lane that receives a message, and the number of lanes in an index |

mod counters;
mod steering;

pub(crate) use counters::{LaneCounters, Run, position};
pub use steering::Steering;
pub(crate) use steering::{IndexTag, RANDOM_CLASSES, Sender};

/// Number of lanes of a device: a power of two, 16 at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Lanes {
    /// One lane, as any WireGuard device has.
    #[default]
    One = 0,
    /// Two lanes.
    Two = 1,
    /// Four lanes.
    Four = 2,
    /// Eight lanes.
    Eight = 3,
    /// Sixteen lanes.
    Sixteen = 4,
}

impl Lanes {
    /// Every number of lanes, in ascending order.
    pub const ALL: [Self; 5] = [Self::One, Self::Two, Self::Four, Self::Eight, Self::Sixteen];

    /// Returns `count` lanes; `None` if a device cannot have so many.
    #[must_use]
    pub fn new(count: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|lanes| lanes.count() == count)
    }

    /// Returns the greatest number of lanes that is at most `count`, and at least one.
    #[must_use]
    pub fn at_most(count: usize) -> Self {
        let mut fitting = Self::ALL.into_iter().rev();
        let found = fitting.find(|lanes| lanes.count() <= count);
        found.unwrap_or_default()
    }

    /// Returns the number of lanes.
    #[must_use]
    pub const fn count(self) -> usize {
        1 << self.log2()
    }

    /// Returns the binary logarithm of the number of lanes: 0 to 4.
    #[must_use]
    pub const fn log2(self) -> u32 {
        self as u32
    }

    /// Returns the lanes, the first one first.
    pub fn ids(self) -> impl ExactSizeIterator<Item = LaneId> + use<> {
        (0..1_u8 << self.log2()).map(LaneId)
    }

    fn from_log2(log2: u32) -> Option<Self> {
        Self::ALL.get(log2 as usize).copied()
    }

    /// Returns the lane with this number, modulo the number of lanes.
    pub(crate) const fn wrap(self, number: u64) -> LaneId {
        LaneId((number & ((1 << self.log2()) - 1)) as u8)
    }
}

/// Number of a lane, below 16.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LaneId(u8);

impl LaneId {
    /// The lane of callers without lanes. Every device has it.
    pub const FIRST: Self = Self(0);

    /// Returns the lane with this number; `None` from 16 on.
    #[must_use]
    pub fn new(number: usize) -> Option<Self> {
        let number = u8::try_from(number).ok()?;
        (usize::from(number) < Lanes::Sixteen.count()).then_some(Self(number))
    }

    /// Returns the lane's number, below 16.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

/// Lanes of the two devices of a session, and of its receiver index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SessionLanes {
    /// Lanes of this device.
    pub(crate) own: Lanes,
    /// Lanes of the peer's device; one if it has not stated them.
    pub(crate) remote: Lanes,
    /// Lanes over which this side receives the session.
    pub(crate) spread: Lanes,
}

impl SessionLanes {
    /// Checks whether each lane of the two devices has counters of its own.
    pub(crate) fn is_striped(self) -> bool {
        self.own > Lanes::One && self.remote > Lanes::One
    }

    /// Checks whether only one lane at a time may send. This is so if there are several lanes and
    /// the peer expects consecutive counters.
    pub(crate) fn is_ordered(self) -> bool {
        self.own > Lanes::One && !self.is_striped()
    }
}

#[cfg(test)]
mod tests;

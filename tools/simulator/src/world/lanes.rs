//! Lanes: which one carries a batch, and for how long its thread loses the processor.

use taupe_protocol::{LaneId, Lanes};

use super::World;
use crate::plan::{MILLISECOND, Nanos};
use crate::random::Random;

/// The longest time for which a lane stands still between two steps.
const MAX_STALL: Nanos = 100 * MILLISECOND;

/// Returns any of the lanes.
pub(super) fn any_lane(random: &mut Random, lanes: Lanes) -> LaneId {
    let number = random.index(lanes.count());
    LaneId::new(number).unwrap_or(LaneId::FIRST)
}

impl World<'_> {
    /// Returns any lane of a host.
    pub(super) fn any_lane(&mut self, host: usize) -> LaneId {
        any_lane(&mut self.lane_random, self.hosts[host].lanes)
    }

    /// Returns the time that a batch waits in a lane of its sender, after its counters have been
    /// reserved, and in a lane of its receiver, before it is opened. To a host without lanes, the
    /// lanes send in the order of their reservations.
    pub(super) fn stall(&mut self, from: usize, to: usize) -> Nanos {
        let has_lanes = [from, to].map(|host| self.hosts[host].lanes > Lanes::One);
        if has_lanes == [true; 2] && self.lane_random.once_in(4) {
            self.lane_random.below(MAX_STALL)
        } else {
            0
        }
    }
}

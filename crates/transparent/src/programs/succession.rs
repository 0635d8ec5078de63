//! Succession of another version's programs, whose maps have another layout and whose process has
//! ended. Its kill switch still blocks the selected applications.
//!
//! Maps of another layout cannot be taken over. The new programs get maps and pins of their own and
//! are attached beside the earlier ones, which block until the new ones do all their work. Then the
//! earlier ones are removed. So at every moment a complete set of programs is attached. If a process
//! ends in between, both sets block, and the next one continues.

use std::sync::atomic::Ordering;

use super::{CaptureMode, Programs};
use crate::error::TransparentError;
use crate::maps::{self, Maps};
use crate::pins::Pins;

/// Returns true if another version has attached the programs of transparent mode, and the process that
/// served them has ended. The fields of the state that this reads are the same in every layout.
pub(crate) fn is_abandoned(pins: &Pins) -> bool {
    let layout = Maps::pinned_state(pins);
    let daemon = || {
        let state = maps::pinned_state_of_any_schema(pins);
        state.map(|state| state.daemon.load(Ordering::Relaxed))
    };
    matches!(layout, Err(TransparentError::Schema { .. }))
        && CaptureMode::of(pins) == Some(CaptureMode::TrafficControl)
        && daemon() == Some(0)
}

impl Programs {
    /// Removes the programs that [`load`](Self::load) has found abandoned. Call it when these programs
    /// block or carry all traffic of the selected applications by themselves.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`] names the pin that cannot be removed. What is left of the earlier
    /// programs blocks.
    pub fn remove_earlier(&self) -> Result<(), TransparentError> {
        // No packet can pass between the two sets, so nothing is drained.
        self.pins
            .earlier()
            .try_for_each(|earlier| Self::remove_undrained(&earlier))
    }
}

//! The daemon's maintenance of the kernel's table of flows.

use std::time::Duration;

use taupe_nat::flows::ExpiringFlows;

use super::Programs;
use crate::fault::Fault;
use crate::maps::Flows;
use crate::state::FlowKey;

impl Programs {
    /// Removes flows without a packet for `idle`, which must be at least a minute. Returns the
    /// number of flows left. Call it several times a minute.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`].
    pub fn expire_flows(&mut self, idle: Duration) -> Result<usize, Fault> {
        self.maps.flows.expire(&self.maps.state, idle)
    }

    /// Makes room for each application that has been refused a flow since the last call: removes
    /// some of its own flows that are unanswered or idle. Calls `forget` first, so that the
    /// translator removes them too.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`].
    pub fn relieve_flows(&mut self, forget: impl FnOnce(&ExpiringFlows)) -> Result<(), Fault> {
        self.maps.flows.relieve(&self.maps.state, |victims| {
            forget(&ExpiringFlows(victims.iter().map(FlowKey::tuple).collect()));
        })
    }

    /// Returns true if a flow has been refused in the last ten seconds.
    #[must_use]
    pub fn are_flows_refused(&self) -> bool {
        Flows::are_refused(&self.maps.state)
    }
}

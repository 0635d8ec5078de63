//! The kernel's table of flows, as the daemon looks after it.

use std::time::Duration;

use taupe_nat::flows::Forgotten;

use super::Programs;
use crate::fault::Fault;
use crate::maps::Flows;
use crate::state::FlowKey;

impl Programs {
    /// Forgets flows without a packet for `idle`, a minute or longer; how many are
    /// left. To be called some times a minute.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`].
    pub fn expire_flows(&mut self, idle: Duration) -> Result<usize, Fault> {
        self.maps.flows.expire(&self.maps.state, idle)
    }

    /// Makes room for an application that has been refused a flow since the last call: removes
    /// some of its own flows that nobody answers or that are idle, after `forget` has been given
    /// them for the translator.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`].
    pub fn relieve_flows(&mut self, forget: impl FnOnce(&Forgotten)) -> Result<(), Fault> {
        self.maps.flows.relieve(&self.maps.state, |victims| {
            forget(&Forgotten(victims.iter().map(FlowKey::tuple).collect()));
        })
    }

    /// Whether a flow has been refused within the last ten seconds.
    #[must_use]
    pub fn are_flows_refused(&self) -> bool {
        Flows::are_refused(&self.maps.state)
    }
}

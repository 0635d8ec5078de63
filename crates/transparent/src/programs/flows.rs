//! The daemon's maintenance of the kernel's table of flows.

use std::io;
use std::time::Duration;

use taupe_nat::flows::ExpiringFlows;

use super::{Programs, TunnelMaps};
use crate::error::TransparentError;
use crate::maps::Flows;
use crate::state::FlowKey;

impl Programs {
    /// Removes flows without a packet for `idle`, which must be at least a minute. Returns the
    /// number of flows left. Call it several times a minute.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Map`].
    pub fn expire_flows(&mut self, idle: Duration) -> Result<usize, TransparentError> {
        let maps = &mut self.tunnel.maps;
        maps.flows.expire(&maps.state, idle)
    }

    /// Makes room for each application that has been refused a flow since the last call: removes
    /// some of its own flows that are unanswered or idle. Calls `forget` first, so that the
    /// translator removes them too. If that fails, the flows stay.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Map`]; [`TransparentError::Call`] if `forget` fails.
    pub fn make_room_for_flows(
        &mut self,
        forget: impl FnOnce(&ExpiringFlows) -> io::Result<()>,
    ) -> Result<(), TransparentError> {
        let maps = &mut self.tunnel.maps;
        maps.flows.make_room(&maps.state, |evicted| {
            let evicted = ExpiringFlows(evicted.iter().map(FlowKey::tuple).collect());
            forget(&evicted).map_err(TransparentError::call("removing flows of the translator"))
        })
    }
}

impl TunnelMaps {
    /// Returns true if a flow has been refused in the last ten seconds.
    #[must_use]
    pub fn are_flows_refused(&self) -> bool {
        Flows::are_flows_refused(&self.maps.state)
    }
}

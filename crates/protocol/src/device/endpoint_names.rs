//! Results of look-ups of endpoint names.

use core::net::SocketAddr;

use crate::device::Device;
use crate::key::PublicKey;
use crate::lock;
use crate::peer::{Timer, move_endpoint};
use crate::time::Now;
use crate::update::EndpointName;

impl Device {
    /// Processes the result of a look-up ([`Output::Resolve`](crate::Output::Resolve)): the
    /// reachable addresses of `name` in order of preference, or none if the look-up failed.
    /// Returns the new endpoint if the peer's endpoint has moved.
    ///
    /// If the endpoint is not among the addresses, it moves to the first of them. Otherwise it
    /// stays until a second look-up returns it again, and then moves to the next address. If no
    /// handshake has completed by this name yet, it moves at once. If the peer has answered, or
    /// was reconfigured or removed, since the look-up was requested, the result is ignored.
    pub fn handle_addresses(
        &mut self,
        now: Now,
        public_key: &PublicKey,
        name: &EndpointName,
        addresses: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let id = self.peers.find(public_key)?;
        let entry = self.peers.entry(id)?;
        let named = entry
            .named_endpoint
            .as_mut()
            .filter(|named| named.name == *name)?;
        let since = named.lookup_since.take();
        let mut state = lock(&entry.peer.state);
        // A changed endpoint starts a new silence, so that the answer no longer applies.
        if since.is_none() || state.initiation.unanswered != since {
            return None;
        }
        let remote = state.endpoint?.remote;
        let next = named.select_address(remote, addresses)?;
        if !named.has_worked {
            // The last initiation went to another address: this one need not wait for
            // Rekey-Timeout.
            state.initiation.network_changed = true;
            state.timers.stop(Timer::Retransmit);
        }
        let moved = move_endpoint(&mut state, next);
        state.request_handshake(now.boot);
        drop(state);
        self.core.run_pending_work(now, entry);
        Some(moved.remote)
    }
}

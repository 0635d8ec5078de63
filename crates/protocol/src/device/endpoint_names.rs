//! Results of look-ups of endpoint names.

use core::net::SocketAddr;

use crate::device::Device;
use crate::key::PublicKey;
use crate::lock;
use crate::peer::{Reason, move_endpoint};
use crate::time::Now;
use crate::update::EndpointName;

impl Device {
    /// Takes the addresses that a name has now, those that can be sent to, in
    /// the order of preference; none when they are not known. Returns where the
    /// peer's endpoint has moved to, if it has.
    ///
    /// An endpoint that is not among the addresses moves to the first of them. An endpoint that is
    /// among them stays for a second look-up, and then moves to the next address. It moves at once
    /// if no handshake has completed by the name yet. If the peer has been heard, configured or
    /// removed since the name was asked for, the answer is dropped.
    pub fn handle_addresses(
        &mut self,
        now: Now,
        public_key: &PublicKey,
        name: &EndpointName,
        addresses: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let id = self.peers.find(public_key)?;
        let entry = self.peers.entry(id)?;
        let named = entry.named.as_mut().filter(|named| named.name == *name)?;
        let since = named.asked.take();
        let mut state = lock(&entry.peer.state);
        // Every new endpoint begins a silence of its own.
        if since.is_none() || state.initiation.unanswered != since {
            return None;
        }
        let remote = state.endpoint?.remote;
        let next = named.choose(remote, addresses)?;
        if !named.has_worked {
            // The initiation before went elsewhere, so that this address need not wait for it.
            state.initiation.hurried = true;
            state.timers.stop(Reason::Retransmit);
        }
        let moved = move_endpoint(&mut state, next);
        state.want_handshake(now.boot);
        drop(state);
        self.core.run_pending(now, entry);
        Some(moved.remote)
    }
}

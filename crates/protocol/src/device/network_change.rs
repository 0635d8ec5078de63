//! Changes in a device's environment: suspend, and changes of network.
//!
//! The paper covers neither. The Linux kernel erases all sessions before suspend. Here, sessions
//! keep their normal lifetime, and a new one is made before it is needed.

use std::sync::Arc;

use crate::device::{Core, Device};
use crate::lock;
use crate::peer::{PeerEntry, PeerId, Role, Timer, clear_local};
use crate::time::Now;

impl Device {
    /// Starts new handshakes with active peers, after the machine has slept. The machine's
    /// address may have changed, and NAT devices may have dropped their mappings.
    ///
    /// Active peers are those whose session this side initiated, those that this side has sent an
    /// unanswered initiation to, and those with a persistent keepalive. Other peers initiate
    /// again themselves.
    pub fn handle_resume(&mut self, now: Now) {
        if !self.is_up() {
            return;
        }
        for id in self.peers.ids() {
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            let has_pending_initiation = entry.has_pending_initiation();
            let state = lock(&entry.peer.state);
            let current = state.sessions.current.as_ref();
            let is_ours = current.is_some_and(|it| it.session.role() == Role::Initiator);
            let in_conversation =
                has_pending_initiation || is_ours || !state.keepalive.interval.is_zero();
            drop(state);
            if in_conversation {
                self.core.initiate_early(now, entry, false);
            }
        }
    }

    /// Sends unanswered initiations again, after routes or addresses have changed: at once, or
    /// [`NETWORK_CHANGE_REKEY_TIMEOUT`](crate::limits::NETWORK_CHANGE_REKEY_TIMEOUT) after the last one. The
    /// earlier ones may have been lost in the old network.
    pub fn handle_network_change(&mut self, now: Now) {
        let mut hurried: Vec<PeerId> = self.core.pending.values().copied().collect();
        hurried.sort_unstable();
        hurried.dedup();
        for id in hurried {
            if let Some(entry) = self.peers.entry(id) {
                self.core.initiate_early(now, entry, true);
            }
        }
    }
}

impl Core {
    fn initiate_early(&mut self, now: Now, entry: &mut PeerEntry, retry: bool) {
        // Failures in another network do not count.
        if let Some(hybrid) = &mut entry.hybrid {
            hybrid.restart();
        }
        if let Some(named) = &mut entry.named_endpoint {
            named.restart();
        }
        let peer = Arc::clone(&entry.peer);
        let mut state = lock(&peer.state);
        state.initiation.network_changed = true;
        clear_local(&mut state);
        if !retry {
            state.initiation.attempts = 0;
        }
        let later = state.next_initiation().filter(|at| *at > now.boot);
        if let Some(at) = later {
            state.timers.set(Timer::Retransmit, at);
        }
        drop(state);
        if later.is_none() {
            self.send_initiation(now, entry, retry);
        }
        self.run_pending_work(now, entry);
    }
}

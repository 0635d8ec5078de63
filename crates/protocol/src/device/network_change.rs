//! What changes around a device while it stays the same: the machine has slept, or it is in
//! another network.
//!
//! The paper knows neither. A kernel that has slept forgets all sessions; here the old ones
//! last as long as they would have, and a new one is made before anybody needs it.

use std::sync::Arc;

use crate::device::{Core, Device};
use crate::lock;
use crate::peer::{PeerEntry, PeerId, Reason, Role, clear_local};
use crate::time::Now;

impl Device {
    /// Has each peer that this side is in conversation with shake hands anew: after the
    /// machine has slept. Its own address may be another, and what translates addresses on
    /// the way has forgotten it.
    ///
    /// Those are peers whose session this side began, or tries to begin, and peers with a
    /// persistent keepalive. Who began its session from elsewhere will again.
    pub fn handle_awakening(&mut self, now: Now) {
        if !self.is_up() {
            return;
        }
        for id in self.peers.ids() {
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            let is_under_way = entry.is_under_way();
            let state = lock(&entry.peer.state);
            let current = state.sessions.current.as_ref();
            let is_ours = current.is_some_and(|it| it.session.role() == Role::Initiator);
            let in_conversation = is_under_way || is_ours || !state.keepalive.interval.is_zero();
            drop(state);
            if in_conversation {
                self.core.hurry(now, entry, false);
            }
        }
    }

    /// Sends initiations that have not been answered again, after routes or addresses have
    /// changed: at once, or [`HURRIED_REKEY_TIMEOUT`](crate::limits::HURRIED_REKEY_TIMEOUT)
    /// after the last. In the network before there may have been nobody to hear them.
    pub fn handle_network_change(&mut self, now: Now) {
        let mut hurried: Vec<PeerId> = self.core.pending.values().copied().collect();
        hurried.sort_unstable();
        hurried.dedup();
        for id in hurried {
            if let Some(entry) = self.peers.entry(id) {
                self.core.hurry(now, entry, true);
            }
        }
    }
}

impl Core {
    fn hurry(&mut self, now: Now, entry: &mut PeerEntry, retry: bool) {
        // What was sent in another network is not held against the peer.
        if let Some(hybrid) = &mut entry.hybrid {
            hybrid.begin_anew();
        }
        if let Some(named) = &mut entry.named {
            named.begin_anew();
        }
        let peer = Arc::clone(&entry.peer);
        let mut state = lock(&peer.state);
        state.initiation.hurried = true;
        clear_local(&mut state);
        if !retry {
            state.initiation.attempts = 0;
        }
        let later = state.next_initiation().filter(|at| *at > now.boot);
        if let Some(at) = later {
            state.timers.set(Reason::Retransmit, at);
        }
        drop(state);
        if later.is_none() {
            self.send_initiation(now, entry, retry);
        }
        self.run_pending(now, entry);
    }
}

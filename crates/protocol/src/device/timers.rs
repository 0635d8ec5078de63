//! Timers: the next deadline of each peer, and the actions at a deadline.

use core::time::Duration;
use std::sync::Arc;

use crate::device::{Core, Device};
use crate::drop_reason::{DropReason, HandshakeResult};
use crate::limits::{ERASE_AFTER_TIME, KEEPALIVE_TIMEOUT, MAX_HANDSHAKE_ATTEMPTS, MAX_JITTER};
use crate::lock;
use crate::peer::{PeerEntry, Timer, clear_local};
use crate::time::{Instant, Now};

impl Device {
    /// Handles all timers that have expired at `now`.
    pub fn handle_deadline(&mut self, now: Now) {
        while let Some((at, id, _)) = self.core.deadlines.first().copied() {
            if at > now.boot {
                break;
            }
            self.core.deadlines.pop_first();
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            entry.deadline = None;
            let peer = Arc::clone(&entry.peer);
            loop {
                let Some(timer) = lock(&peer.state).timers.expire(now.boot) else {
                    break;
                };
                self.core.handle_timer(now, entry, timer);
            }
            self.core.run_pending_work(now, entry);
        }
    }
}

impl Core {
    fn handle_timer(&mut self, now: Now, entry: &mut PeerEntry, timer: Timer) {
        let peer = Arc::clone(&entry.peer);
        let mut state = lock(&peer.state);
        match timer {
            // This side has sent a response in the meantime: wait for Rekey-Timeout after it.
            Timer::Retransmit if !state.may_send_initiation(now.boot) => {
                if let Some(at) = state.next_initiation() {
                    let at = at + state.control.jitter;
                    state.timers.set(Timer::Retransmit, at);
                }
            }
            Timer::Retransmit if state.initiation.attempts > MAX_HANDSHAKE_ATTEMPTS => {
                state.timers.stop(Timer::Keepalive);
                state.initiation.unanswered = None;
                let purged = state.staging.packets.len() as u64;
                state.staging.packets.clear();
                drop(state);
                let counters = self.path.counters();
                counters.add(DropReason::StagedPurged, purged);
                counters.count_handshake(HandshakeResult::Unanswered);
                if let Some(hybrid) = &mut entry.hybrid {
                    hybrid.restart();
                }
                self.abandon_initiation(entry);
            }
            Timer::Retransmit => {
                // Failures in another network do not count.
                if !state.initiation.network_changed {
                    state.initiation.attempts += 1;
                }
                // The route may have failed: let the system choose the source address again.
                clear_local(&mut state);
                drop(state);
                self.send_initiation(now, entry, true);
            }
            Timer::ResendParts => {
                drop(state);
                self.resend_parts(now, entry);
            }
            Timer::Keepalive => {
                let another = core::mem::take(&mut state.keepalive.another_due);
                drop(state);
                self.send_keepalive(now, entry);
                if another {
                    let at = now.boot + KEEPALIVE_TIMEOUT;
                    lock(&peer.state).timers.set(Timer::Keepalive, at);
                }
            }
            Timer::DeadPeer => {
                clear_local(&mut state);
                drop(state);
                self.send_initiation(now, entry, false);
            }
            Timer::EraseKeys => {
                state
                    .sessions
                    .retire_if(|session| now.boot.since(session.born()) >= ERASE_AFTER_TIME);
                drop(state);
                self.forget_provisional(entry, |it| it.age(now.boot) >= ERASE_AFTER_TIME);
            }
            Timer::PersistentKeepalive => {
                let at = now.boot + state.keepalive.interval;
                if state.endpoint.is_some() && !state.keepalive.interval.is_zero() {
                    state.timers.set(Timer::PersistentKeepalive, at);
                }
                drop(state);
                self.send_keepalive(now, entry);
            }
        }
    }

    pub(super) fn schedule(&mut self, entry: &mut PeerEntry) {
        let jitter = self.jitter();
        let mut state = lock(&entry.peer.state);
        let retired = core::mem::take(&mut state.sessions.retired);
        let begun = entry.hybrid.as_ref().and_then(|hybrid| hybrid.oldest());
        match state.sessions.oldest().into_iter().chain(begun).min() {
            Some(born) => state.timers.set(Timer::EraseKeys, born + ERASE_AFTER_TIME),
            None => state.timers.stop(Timer::EraseKeys),
        }
        state.control.jitter = jitter;
        let deadline = state.timers.next();
        state.control.scheduled = deadline.map_or(Instant::FAR_FUTURE, |(at, _)| at);
        drop(state);
        let id = entry.peer.id();
        let before = core::mem::replace(&mut entry.deadline, deadline);
        if before != deadline {
            if let Some((at, reason)) = before {
                self.deadlines.remove(&(at, id, reason));
            }
            if let Some((at, reason)) = deadline {
                self.deadlines.insert((at, id, reason));
            }
        }
        for session in retired {
            self.path.sessions.remove(&session);
        }
    }

    pub(crate) fn jitter(&mut self) -> Duration {
        let range = MAX_JITTER.as_nanos() as u64;
        Duration::from_nanos((u64::from(self.random.number()) * range) >> 32)
    }
}

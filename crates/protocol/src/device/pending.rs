//! Work on one peer: requests of its data path, waiting packets, and shutdown.

use std::sync::Arc;
use taupe_crypto::TAG_LEN;

use crate::device::Core;
use crate::drop_reason::{DropReason, HandshakeResult};
use crate::lanes::LaneId;
use crate::lock;
use crate::message::{DATA_HEADER_LEN, DATA_OVERHEAD};
use crate::output::Output;
use crate::peer::{PeerEntry, Timer, Traffic};
use crate::time::Now;

impl Core {
    /// Processes the peer's pending work, removes retired sessions from the table, and sets the
    /// peer's deadline. Every operation on a peer ends with this call.
    pub(crate) fn run_pending_work(&mut self, now: Now, entry: &mut PeerEntry) {
        loop {
            let peer = Arc::clone(&entry.peer);
            let mut state = lock(&peer.state);
            let work = core::mem::take(&mut state.control.work);
            if work.confirmed.is_some() {
                state.timers.stop(Timer::Retransmit);
                state.timers.stop(Timer::ResendParts);
                state.initiation.attempts = 0;
                state.sessions.renewed_on_receive = false;
                entry.latest_handshake = Some(now.wall);
                if let Some(hybrid) = &mut entry.hybrid {
                    hybrid.restart();
                }
                entry.note_session(&mut self.outputs);
                self.path
                    .counters()
                    .count_handshake(HandshakeResult::Responded);
            }
            drop(state);
            if let Some(index) = work.confirmed {
                self.abandon_initiation(entry);
                self.confirm_provisional(entry, index);
            }
            if work.confirmed.is_some() || work.flush {
                self.flush(now, entry);
            }
            if work.handshake {
                self.send_initiation(now, entry, false);
            }
            if !work.any() {
                break;
            }
        }
        self.schedule(entry);
    }

    /// Sends the staged packets, or an empty packet if there are none.
    pub(crate) fn send_keepalive(&mut self, now: Now, entry: &PeerEntry) {
        let mut state = lock(&entry.peer.state);
        if state.up && state.staging.packets.is_empty() {
            state.staging.packets.push_back(crate::Staged {
                packet: Vec::new(),
                ecn: 0,
                lane: LaneId::FIRST,
            });
        }
        drop(state);
        self.flush(now, entry);
    }

    /// Sends the staged packets as far as the session allows, and requests a handshake for the
    /// rest.
    pub(crate) fn flush(&mut self, now: Now, entry: &PeerEntry) {
        let peer = Arc::clone(&entry.peer);
        loop {
            let mut state = lock(&peer.state);
            let next = state.staging.packets.front().map(|staged| staged.lane);
            let (Some(endpoint), Some(lane)) = (state.endpoint, next) else {
                return;
            };
            let Some((session, mut counters)) = state.take_counters(now.boot, lane, 1) else {
                state.request_handshake(now.boot);
                return;
            };
            let Some(staged) = state.staging.packets.pop_front() else {
                return;
            };
            let bytes = (staged.packet.len() + DATA_OVERHEAD) as u64;
            let traffic = if staged.packet.is_empty() {
                Traffic::Other
            } else {
                Traffic::Data
            };
            state.sent(now.boot, bytes, traffic);
            drop(state);
            let mut datagram = vec![0; staged.packet.len() + DATA_OVERHEAD];
            let end = datagram.len() - TAG_LEN;
            datagram[DATA_HEADER_LEN..end].copy_from_slice(&staged.packet);
            let stride = datagram.len();
            session.seal(&mut counters, &mut datagram, stride);
            self.outputs.push_back(Output::Transmit {
                endpoint,
                tos: staged.ecn,
                datagram,
            });
        }
    }

    pub(crate) fn abandon_initiation(&mut self, entry: &mut PeerEntry) {
        let handshakes = entry.handshakes.as_mut();
        let initiation = handshakes.and_then(|handshakes| handshakes.initiation.take());
        if let Some((index, _)) = initiation {
            self.pending.remove(&index);
        }
    }

    /// Stops a peer: its state is then that of a peer on a device that is down.
    pub(crate) fn stop_peer(&mut self, entry: &mut PeerEntry) {
        self.abandon_initiation(entry);
        self.forget_provisional(entry, |_| true);
        let mut state = lock(&entry.peer.state);
        state.up = false;
        let purged = state.staging.packets.len() as u64;
        state.staging.packets.clear();
        state.staging.staged_before_up = None;
        state.timers.stop_all();
        state.sessions.retire_if(|_| true);
        state.initiation.last_sent = None;
        state.initiation.network_changed = false;
        state.initiation.unanswered = None;
        state.initiation.attempts = 0;
        state.lanes.forget_interleaving();
        state.keepalive.another_due = false;
        state.sessions.renewed_on_receive = false;
        state.control.work = crate::peer::PendingWork::default();
        drop(state);
        self.path.counters().add(DropReason::StagedPurged, purged);
        self.schedule(entry);
    }
}

//! Initiator of hybrid handshakes: sends initiations, sends their parts again, and processes
//! responses.

use taupe_crypto::Provider;

use crate::device::handshake::{Begin, Finished};
use crate::device::identity::DeviceIdentity;
use crate::device::{Core, Device};
use crate::drop_reason::DropReason;
use crate::endpoint::Endpoint;
use crate::hybrid::noise::{AfterA, Initiator, Local, Parts};
use crate::hybrid::{Partly, Waiting};
use crate::limits::HANDSHAKE_TOS;
use crate::lock;
use crate::message::{Half, Part, indices};
use crate::output::Output;
use crate::peer::{PeerEntry, Pending, Reason, Traffic};
use crate::time::Now;

/// Makes a hybrid initiation with its MACs. `None` if a key for it is missing.
pub(crate) fn begin_hybrid(
    crypto: &Provider,
    now: Now,
    identity: &DeviceIdentity,
    entry: &mut PeerEntry,
    begin: Begin<'_>,
) -> Option<(Pending, Parts)> {
    let local = Local {
        keys: &identity.keys,
        hybrid: &identity.hybrid,
    };
    let (initiator, parts) = Initiator::start(
        crypto,
        local,
        &entry.hybrid.as_ref()?.remote,
        &entry.preshared_key,
        begin.precomputed,
        begin.random,
        begin.timestamp,
        begin.index,
    )
    .ok()?;
    let mut stamped = parts.clone();
    let stamper = &mut entry.handshakes(crypto).stamper;
    stamper.stamp_parts(crypto, now.boot, &mut stamped);
    let waiting = Waiting::new(initiator, parts, now.boot);
    Some((Pending::Hybrid(Box::new(waiting)), stamped))
}

impl Device {
    /// Writes valid MACs into a part of a response, which otherwise only a responder that can
    /// open the initiation can do. For tests of the later checks.
    #[doc(hidden)]
    pub fn stamp_response_for_test(&mut self, part: &mut [u8]) {
        let index = indices(part).map(|[_, receiver]| receiver);
        let id = index.and_then(|index| self.core.pending.get(&index).copied());
        let entry = id.and_then(|id| self.peers.entry(id));
        let handshakes = entry.and_then(|entry| entry.handshakes.as_ref());
        if let Some((_, Pending::Hybrid(waiting))) =
            handshakes.and_then(|it| it.initiation.as_ref())
        {
            waiting.initiator.stamp_response(self.core.crypto, part);
        }
    }

    /// Processes a part of a response. Its mac1 proves that the responder could open the
    /// initiation, so that neither load nor the rate limits apply.
    pub(crate) fn handle_hybrid_response(
        &mut self,
        now: Now,
        from: Endpoint,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let crypto = self.core.crypto;
        let part = message.first_chunk().and_then(|header| Part::of(*header));
        let part = part.ok_or(DropReason::Type)?;
        let [sender, index] = indices(message).ok_or(DropReason::Length)?;
        let identity = self.core.identity.as_ref().ok_or(DropReason::NotReady)?;
        let id = *self
            .core
            .pending
            .get(&index)
            .ok_or(DropReason::UnknownHandshake)?;
        let entry = self.peers.entry(id).ok_or(DropReason::UnknownHandshake)?;
        let handshakes = entry
            .handshakes
            .as_mut()
            .ok_or(DropReason::UnknownHandshake)?;
        let Some((_, Pending::Hybrid(waiting))) = &mut handshakes.initiation else {
            return Err(DropReason::UnknownHandshake);
        };
        if !waiting.initiator.is_answer(crypto, message) {
            return Err(DropReason::ResponseNotAuthentic);
        }
        let local = Local {
            keys: &identity.keys,
            hybrid: &identity.hybrid,
        };
        let psk = &entry.preshared_key;
        let forged = |_| DropReason::ResponseNotAuthentic;
        let other = waiting.answers.iter().find(|(of, _)| *of == sender);
        let keys = match (part.half, other.map(|(_, part)| part)) {
            (Half::A, Some(Partly::Halfway(_))) => return Err(DropReason::PartRepeated),
            (Half::A, other) => {
                let after = waiting.initiator.take_a(crypto, local, psk, message);
                match (after.map_err(forged)?, other) {
                    (AfterA::Done(keys), _) => Some(keys),
                    (AfterA::Halfway(halfway), Some(Partly::Early(b))) => {
                        let keys = halfway.take_b(crypto, local, psk, b);
                        Some(keys.map_err(forged)?)
                    }
                    (AfterA::Halfway(halfway), _) => {
                        waiting.keep(sender, Partly::Halfway(halfway));
                        None
                    }
                }
            }
            (Half::B, Some(Partly::Halfway(halfway))) => {
                let keys = halfway.take_b(crypto, local, psk, message);
                Some(keys.map_err(forged)?)
            }
            (Half::B, _) => {
                waiting.keep(sender, Partly::Early(message.to_vec()));
                None
            }
        };
        let Some(keys) = keys else {
            return Ok(());
        };
        let finished = Finished {
            index,
            remote_index: sender,
            keys,
            suite: Some(part.suite),
            bytes: message.len() as u64,
        };
        self.core.finish_initiation(now, from, entry, finished);
        Ok(())
    }
}

impl Core {
    /// Sends the parts of an initiation again.
    pub(crate) fn resend_parts(&mut self, now: Now, entry: &mut PeerEntry) {
        let crypto = self.crypto;
        let Some(handshakes) = entry.handshakes.as_mut() else {
            return;
        };
        let Some((_, Pending::Hybrid(waiting))) = &mut handshakes.initiation else {
            return;
        };
        let mut state = lock(&entry.peer.state);
        let Some(endpoint) = state.endpoint else {
            return;
        };
        waiting.count_resend(now.boot);
        if let Some(at) = waiting.resend_at() {
            state.timers.set(Reason::ResendParts, at);
        }
        // Both parts, whichever has been answered: a responder that has lost its state needs
        // both.
        let mut parts = waiting.parts.clone();
        let stamper = &mut handshakes.stamper;
        stamper.stamp_parts(crypto, now.boot, &mut parts);
        let bytes = parts.iter().map(Vec::len).sum::<usize>() as u64;
        state.sent(now.boot, bytes, Traffic::Other);
        drop(state);
        self.transmit_parts(endpoint, parts);
    }

    pub(crate) fn transmit_parts(&mut self, endpoint: Endpoint, parts: Parts) {
        let transmit = |datagram| Output::Transmit {
            endpoint,
            tos: HANDSHAKE_TOS,
            datagram,
        };
        self.outputs.extend(parts.into_iter().map(transmit));
    }
}

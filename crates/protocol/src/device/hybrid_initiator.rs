//! Initiator of hybrid handshakes: sends initiations, sends their parts again, and processes
//! responses.

use taupe_crypto::Provider;

use crate::device::handshake::{CompletedHandshake, InitiationInputs};
use crate::device::identity::DeviceIdentity;
use crate::device::{Core, Device};
use crate::drop_reason::DropReason;
use crate::endpoint::Endpoint;
use crate::hybrid::noise::{HybridInitiator, Local, PartAOutcome, Parts};
use crate::hybrid::{HybridInitiation, ResponsePart};
use crate::limits::HANDSHAKE_TOS;
use crate::lock;
use crate::message::{Half, Part, indices};
use crate::output::Output;
use crate::peer::{PeerEntry, Pending, Timer, Traffic};
use crate::time::Now;

/// Makes a hybrid initiation with its MACs. `None` if a key for it is missing.
pub(crate) fn make_hybrid_initiation(
    crypto: &Provider,
    now: Now,
    identity: &DeviceIdentity,
    entry: &mut PeerEntry,
    begin: InitiationInputs<'_>,
) -> Option<(Pending, Parts)> {
    let local = Local {
        keys: &identity.keys,
        hybrid: &identity.hybrid,
    };
    let (initiator, parts) = HybridInitiator::start(
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
    let mut with_macs = parts.clone();
    let mac_writer = &mut entry.handshakes(crypto).mac_writer;
    mac_writer.write_part_macs(crypto, now.boot, &mut with_macs);
    let initiation = HybridInitiation::new(initiator, parts, now.boot);
    Some((Pending::Hybrid(Box::new(initiation)), with_macs))
}

impl Device {
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
        let Some((_, Pending::Hybrid(initiation))) = &mut handshakes.initiation else {
            return Err(DropReason::UnknownHandshake);
        };
        if !initiation.initiator.verify_response_macs(crypto, message) {
            return Err(DropReason::ResponseNotAuthentic);
        }
        let local = Local {
            keys: &identity.keys,
            hybrid: &identity.hybrid,
        };
        let psk = &entry.preshared_key;
        let forged = |_| DropReason::ResponseNotAuthentic;
        let other = initiation.responses.iter().find(|(of, _)| *of == sender);
        let keys = match (part.half, other.map(|(_, part)| part)) {
            (Half::A, Some(ResponsePart::A(_))) => return Err(DropReason::PartRepeated),
            (Half::A, other) => {
                let after = initiation
                    .initiator
                    .read_part_a(crypto, local, psk, message);
                match (after.map_err(forged)?, other) {
                    (PartAOutcome::Complete(keys), _) => Some(keys),
                    (PartAOutcome::NeedsPartB(awaiting), Some(ResponsePart::B(b))) => {
                        let keys = awaiting.read_part_b(crypto, local, psk, b);
                        Some(keys.map_err(forged)?)
                    }
                    (PartAOutcome::NeedsPartB(awaiting), _) => {
                        initiation.store(sender, ResponsePart::A(Box::new(awaiting)));
                        None
                    }
                }
            }
            (Half::B, Some(ResponsePart::A(awaiting))) => {
                let keys = awaiting.read_part_b(crypto, local, psk, message);
                Some(keys.map_err(forged)?)
            }
            (Half::B, _) => {
                initiation.store(sender, ResponsePart::B(message.to_vec()));
                None
            }
        };
        let Some(keys) = keys else {
            return Ok(());
        };
        let finished = CompletedHandshake {
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
        let Some((_, Pending::Hybrid(initiation))) = &mut handshakes.initiation else {
            return;
        };
        let mut state = lock(&entry.peer.state);
        let Some(endpoint) = state.endpoint else {
            return;
        };
        initiation.count_resend(now.boot);
        if let Some(at) = initiation.resend_at() {
            state.timers.set(Timer::ResendParts, at);
        }
        // Both parts, whichever has been answered: a responder that has lost its state needs
        // both.
        let mut parts = initiation.parts.clone();
        let mac_writer = &mut handshakes.mac_writer;
        mac_writer.write_part_macs(crypto, now.boot, &mut parts);
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

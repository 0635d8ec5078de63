//! A published handshake, K512+tK512, in the place of WireGuard's, for comparison only.
//!
//! **Insecure**: [`taupe_repro`] says why. Nothing that is released has this feature.
//!
//! Messages have WireGuard's types and are known by their lengths; they are longer than a
//! packet, and IP cuts them. Sessions, timers and transport data are WireGuard's. The peers'
//! X25519 keys only name them: the long-term keys are those of ML-KEM-512, made of
//! `pq_private_key` and given as `pq_public_key`. Cookies are not reproduced, and who calls is
//! found by trying every peer that has this handshake: a device has few of them. Where nobody
//! has configured a preshared key there is the published one, which is none. Nothing protects such a
//! device from floods: its messages pass the checks of load by. Keys that change
//! hold from the next handshake on.

use taupe_crypto::{KemParameters, Provider, Secret};
use taupe_repro::fujioka::KeyPair;
use taupe_repro::pke::TKYBER512;
use taupe_repro::{End, Error, Initiator, Responder, Session};

use crate::device::Device;
use crate::handshake::{Begin, Finished};
use crate::hybrid::Suite;
use crate::key::PqPrivateKey;
use crate::message::Kind;
use crate::noise::TransportKeys;
use crate::path::Cause;
use crate::peer::Endpoint;
use crate::slots::{Pending, Slot};
use crate::time::{Now, Tai64N};

/// Bytes of an initiation.
pub(crate) const INITIATION_LEN: usize = 1684;
/// Bytes of a response.
pub(crate) const RESPONSE_LEN: usize = 1436;

/// Whether a message of this kind is one of the published handshake's.
pub(crate) fn is_one(kind: Kind, message: &[u8]) -> bool {
    match kind {
        Kind::Initiation => message.len() == INITIATION_LEN,
        Kind::Response => message.len() == RESPONSE_LEN,
        _ => false,
    }
}

/// This side's end of the tunnel to a peer. `None` unless the peer has this handshake and both
/// have keys of ML-KEM-512.
fn end(crypto: &'static Provider, seed: Option<&PqPrivateKey>, slot: &Slot) -> Option<End> {
    let hybrid = slot.hybrid.as_ref()?;
    let remote = hybrid.remote.pq_public_key.as_ref()?;
    if !slot.policy().is_insecure() || remote.suite() != Suite::Hybrid512 {
        return None;
    }
    let local = KeyPair::new(crypto, KemParameters::MlKem512, seed?.expose());
    let authentication = local.with(remote.as_bytes()).ok()?;
    let preshared = &slot.preshared_key;
    let preshared = preshared.is_set().then(|| Secret::new(*preshared.expose()));
    Some(End::new(
        crypto,
        TKYBER512,
        Box::new(authentication),
        preshared,
    ))
}

/// Makes an initiation, with its MAC. `None` without the keys for it.
pub(crate) fn begin(
    crypto: &'static Provider,
    seed: Option<&PqPrivateKey>,
    slot: &Slot,
    begin: Begin<'_>,
) -> Option<(Pending, Vec<Vec<u8>>)> {
    let end = end(crypto, seed, slot)?;
    let random = begin.random;
    let mut fill = |bytes: &mut [u8]| random.fill(bytes);
    let (initiator, datagram) = Initiator::start(&end, begin.index, begin.label.0, &mut fill);
    Some((Pending::Repro(Box::new(initiator)), vec![datagram]))
}

impl Device {
    /// Takes a message of the published handshake.
    pub(crate) fn handle_repro(
        &mut self,
        now: Now,
        from: Endpoint,
        kind: Kind,
        message: &[u8],
    ) -> Result<(), Cause> {
        if !self.up || self.identity.is_none() {
            return Err(Cause::NotReady);
        }
        if kind == Kind::Initiation {
            self.handle_repro_initiation(now, from, message)
        } else {
            self.handle_repro_response(now, from, message)
        }
    }

    fn handle_repro_initiation(
        &mut self,
        now: Now,
        from: Endpoint,
        message: &[u8],
    ) -> Result<(), Cause> {
        let crypto = self.crypto;
        let seed = self.pq_private_key.as_ref();
        for id in self.peers.ids() {
            let Some(slot) = self.peers.slot(id) else {
                continue;
            };
            let Some(end) = end(crypto, seed, slot) else {
                continue;
            };
            let responder = match Responder::accept(&end, message) {
                Ok(responder) => responder,
                Err(Error::Stranger) => continue,
                // Of this side's key, and so of no peer more than of another.
                Err(Error::Mac) => return Err(Cause::Mac1),
                Err(_) => return Err(Cause::InitiationNotAuthentic),
            };
            let label = Tai64N(responder.label());
            slot.admit_label(crypto, now.boot, label)?;
            let index = self.new_index();
            let random = self.random.as_mut();
            let (response, session) = responder.respond(index, &mut |bytes| random.fill(bytes));
            self.accept_initiation(now, from, id, label, message);
            let indices = [session.local_index, session.remote_index];
            self.respond(now, id, &keys(session), indices, response);
            self.settle(now, id);
            return Ok(());
        }
        Err(Cause::UnknownPeer)
    }

    fn handle_repro_response(
        &mut self,
        now: Now,
        from: Endpoint,
        message: &[u8],
    ) -> Result<(), Cause> {
        let index = message.get(8..).and_then(|rest| rest.first_chunk());
        let index = u32::from_le_bytes(*index.ok_or(Cause::Length)?);
        let id = *self.pending.get(&index).ok_or(Cause::UnknownHandshake)?;
        let slot = self.peers.slot(id).ok_or(Cause::UnknownHandshake)?;
        let handshakes = slot.handshakes.as_ref();
        let Some((_, Pending::Repro(initiator))) =
            handshakes.and_then(|handshakes| handshakes.initiation.as_ref())
        else {
            return Err(Cause::UnknownHandshake);
        };
        let end = end(self.crypto, self.pq_private_key.as_ref(), slot);
        let end = end.ok_or(Cause::UnknownHandshake)?;
        let session = match initiator.finish(&end, message) {
            Ok(session) => session,
            Err(Error::Mac) => return Err(Cause::Mac1),
            Err(_) => return Err(Cause::ResponseNotAuthentic),
        };
        let finished = Finished {
            index,
            remote_index: session.remote_index,
            keys: keys(session),
            suite: None,
            bytes: message.len() as u64,
        };
        self.finish_initiation(now, from, id, finished);
        Ok(())
    }
}

fn keys(session: Session) -> TransportKeys {
    TransportKeys {
        send: session.send,
        receive: session.receive,
    }
}

//! Responder of hybrid handshakes.
//!
//! An attacker with all X25519 private keys (from a quantum computer) can begin a handshake in
//! the name of any peer. So until the initiator has used the session, nothing of the handshake
//! has effect: not its timestamp, not its source address, not its session.

use core::net::SocketAddr;
use std::sync::Arc;

use crate::device::indices::IndexPurpose;
use crate::device::{Core, Device};
use crate::drop_reason::DropReason;
use crate::endpoint::Endpoint;
use crate::handshake::noise::NoiseError;
use crate::hybrid::noise::{HybridClaim, HybridResponder, Local, Parts};
use crate::hybrid::{Provisional, ProvisionalState};
use crate::limits::MAX_PROVISIONAL;
use crate::lock;
use crate::message::{Half, Part, indices, lasting};
use crate::peer::{PeerEntry, Peers, Session};
use crate::time::{Now, Tai64N};

impl Device {
    /// Processes a part of an initiation. `address_proven` is true if the sender has proven with a cookie
    /// that it receives at `from`.
    pub(crate) fn handle_hybrid_initiation(
        &mut self,
        now: Now,
        from: Endpoint,
        address_proven: bool,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let part = message.first_chunk().and_then(|header| Part::of(*header));
        let part = part.ok_or(DropReason::Type)?;
        let [sender, _] = indices(message).ok_or(DropReason::Length)?;
        match part.half {
            Half::A => {
                self.handle_initiation_part_a(now, from, address_proven, part, sender, message)
            }
            Half::B => {
                let Self { peers, core } = self;
                let Some(entry) = find_provisional_peer(peers, core, from.remote, sender) else {
                    core.early_parts.store(from.remote, message);
                    return Ok(());
                };
                if core.handle_initiation_part_b(now, from, entry, sender, message)? {
                    core.run_pending_work(now, entry);
                }
                Ok(())
            }
        }
    }

    fn handle_initiation_part_a(
        &mut self,
        now: Now,
        from: Endpoint,
        address_proven: bool,
        part: Part,
        sender: u32,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let Self { peers, core } = self;
        let crypto = core.crypto;
        let digest = crypto.hash.hash(&[lasting(message)]);
        if let Some(entry) = find_provisional_peer(peers, core, from.remote, sender)
            && let Some(begun) = entry.find_provisional(from.remote, sender)
        {
            if begun.a == digest {
                core.resend_response_part(from, entry, sender, Half::A);
                return Ok(());
            }
            // A handshake in progress is not replaced.
            if begun.is_live(now.boot) {
                return Err(DropReason::PartRepeated);
            }
        }
        let forged = |_: NoiseError| DropReason::InitiationNotAuthentic;
        let identity = core.identity.as_ref().ok_or(DropReason::NotReady)?;
        let local = Local {
            keys: &identity.keys,
            hybrid: &identity.hybrid,
        };
        let claim = HybridClaim::open(crypto, local, part.suite, message).map_err(forged)?;
        let id = peers.find_identity(claim.identity());
        let id = id.ok_or(DropReason::UnknownPeer)?;
        let entry = peers.entry(id).ok_or(DropReason::UnknownPeer)?;
        let precomputed = entry
            .precomputed(crypto, &identity.keys)
            .ok_or(DropReason::InitiationNotAuthentic)?;
        let hybrid = entry.hybrid.as_ref().ok_or(DropReason::UnknownPeer)?;
        let opened = claim
            .verify(crypto, &hybrid.remote, &entry.preshared_key, &precomputed)
            .map_err(forged)?;
        let timestamp = opened.timestamp();
        // If a handshake of this peer is in progress, the sender of another must prove its
        // address with a cookie. Otherwise an attacker could displace the peer's handshake from
        // many forged addresses.
        let contended = hybrid.provisional.iter().any(|it| it.is_live(now.boot));
        if hybrid
            .timestamp_received
            .is_some_and(|last| timestamp <= last)
        {
            return Err(DropReason::InitiationReplayed);
        }
        if contended && !address_proven {
            core.demand_cookie(now, from, message)?;
        }
        let begun = Provisional {
            from,
            sender,
            a: digest,
            timestamp,
            since: now.boot,
            state: ProvisionalState::AwaitsPartB(Box::new(opened)),
        };
        core.store_provisional(now, entry, begun);
        core.continue_provisional(now, from, entry, sender);
        core.run_pending_work(now, entry);
        Ok(())
    }
}

impl Core {
    /// Answers a first part if the message has no other, or if the second part arrived before it.
    fn continue_provisional(
        &mut self,
        now: Now,
        from: Endpoint,
        entry: &mut PeerEntry,
        sender: u32,
    ) {
        let Some(begun) = entry.find_provisional(from.remote, sender) else {
            return;
        };
        let ProvisionalState::AwaitsPartB(opened) = &mut begun.state else {
            return;
        };
        let suite = opened.suite();
        if let Some(ready) = opened.without_part_b() {
            self.send_hybrid_response(now, entry, sender, from, ready, [0; 32]);
        } else if let Some(b) = self.early_parts.take(from.remote, suite, sender) {
            // The second part was stored unverified: it may be invalid.
            let _ = self.handle_initiation_part_b(now, from, entry, sender, &b);
        }
    }

    /// Processes the second part of an initiation whose first part has arrived. Returns `true` if
    /// it is answered for the first time.
    fn handle_initiation_part_b(
        &mut self,
        now: Now,
        from: Endpoint,
        entry: &mut PeerEntry,
        sender: u32,
        message: &[u8],
    ) -> Result<bool, DropReason> {
        let Some(begun) = entry.find_provisional(from.remote, sender) else {
            return Ok(false);
        };
        let digest = self.crypto.hash.hash(&[lasting(message)]);
        match &begun.state {
            ProvisionalState::Answered { b, .. } if *b == digest => {
                self.resend_response_part(from, entry, sender, Half::B);
                Ok(false)
            }
            ProvisionalState::Answered { .. } => Err(DropReason::InitiationNotAuthentic),
            ProvisionalState::AwaitsPartB(opened) => {
                let ready = opened
                    .read_part_b(self.crypto, message)
                    .map_err(|_| DropReason::InitiationNotAuthentic)?;
                self.send_hybrid_response(now, entry, sender, from, ready, digest);
                Ok(true)
            }
        }
    }

    /// Responds to a complete initiation. The session waits for confirmation.
    fn send_hybrid_response(
        &mut self,
        now: Now,
        entry: &mut PeerEntry,
        sender: u32,
        from: Endpoint,
        ready: HybridResponder,
        b: [u8; 32],
    ) {
        let crypto = self.crypto;
        let Some(identity) = self.identity.as_ref() else {
            return;
        };
        let Some(precomputed) = entry.precomputed(crypto, &identity.keys) else {
            return;
        };
        let begun = entry.find_provisional(from.remote, sender);
        let Some(timestamp) = begun.map(|begun| begun.timestamp) else {
            return;
        };
        let purpose = IndexPurpose {
            peer: entry.peer.id(),
            precomputed: &precomputed,
            timestamp,
        };
        let suite = entry.hybrid.as_ref().map(|hybrid| hybrid.remote.suite);
        let agreed = self.choose_responder_index(entry, &purpose, sender, suite);
        let index = agreed.local_index;
        let (Some(identity), Some(hybrid)) = (self.identity.as_ref(), entry.hybrid.as_mut()) else {
            return;
        };
        let local = Local {
            keys: &identity.keys,
            hybrid: &identity.hybrid,
        };
        let random = self.random.as_mut();
        let psk = &entry.preshared_key;
        let clock = Tai64N::from_wall(now.wall);
        let Ok((parts, keys)) =
            ready.respond(crypto, local, &hybrid.remote, psk, random, clock, index)
        else {
            return;
        };
        let Some(begun) = hybrid.find_provisional(from.remote, sender) else {
            return;
        };
        begun.state = ProvisionalState::Answered {
            index,
            b,
            parts: parts.clone(),
        };
        let session = Arc::new(Session::new(crypto, &keys, agreed, now.boot));
        self.path
            .sessions
            .insert(Arc::clone(&session), Arc::clone(&entry.peer));
        let peer = Arc::clone(&entry.peer);
        lock(&peer.state).sessions.provisional.push(session);
        self.send_parts(entry, from, parts);
    }

    /// Sends a part of the response again, unchanged.
    fn resend_response_part(
        &mut self,
        from: Endpoint,
        entry: &mut PeerEntry,
        sender: u32,
        half: Half,
    ) {
        let Some(begun) = entry.find_provisional(from.remote, sender) else {
            return;
        };
        let ProvisionalState::Answered { parts, .. } = &begun.state else {
            return;
        };
        let part = parts.get(half as usize).cloned();
        self.send_parts(entry, from, part.into_iter().collect());
    }

    /// Sends parts of a response to the source of the initiation. Before confirmation they are
    /// not traffic with the peer, and change none of its timers.
    fn send_parts(&mut self, entry: &PeerEntry, to: Endpoint, parts: Parts) {
        let bytes = parts.iter().map(Vec::len).sum::<usize>() as u64;
        let mut state = lock(&entry.peer.state);
        state.statistics.tx_bytes = state.statistics.tx_bytes.saturating_add(bytes);
        drop(state);
        self.transmit_parts(to, parts);
    }

    /// Stores a handshake that has begun, and removes another if there are too many.
    fn store_provisional(&mut self, now: Now, entry: &mut PeerEntry, begun: Provisional) {
        let key = (begun.from.remote, begun.sender);
        self.forget_provisional(entry, |it| {
            let given_up = it.session().is_none() && !it.is_live(now.boot);
            given_up || (it.from.remote, it.sender) == key
        });
        let lot = self.random.number();
        let Some(hybrid) = entry.hybrid.as_mut() else {
            return;
        };
        let stored = &hybrid.provisional;
        if stored.len() >= MAX_PROVISIONAL {
            // Removes one from the same address, or else one that has timed out. Otherwise a
            // random one, so that an attacker cannot predict which.
            let same = stored
                .iter()
                .position(|it| it.from.remote == begun.from.remote);
            let stale = stored.iter().position(|it| !it.is_live(now.boot));
            let victim = same.or(stale).unwrap_or(lot as usize % stored.len());
            let victim = stored.get(victim).map(|it| (it.from.remote, it.sender));
            self.forget_provisional(entry, |it| Some((it.from.remote, it.sender)) == victim);
        }
        self.provisional_peers.insert(key, entry.peer.id());
        if let Some(hybrid) = entry.hybrid.as_mut() {
            hybrid.provisional.push(begun);
        }
    }

    /// Removes unconfirmed handshakes and their sessions.
    pub(crate) fn forget_provisional(
        &mut self,
        entry: &mut PeerEntry,
        is_it: impl Fn(&Provisional) -> bool,
    ) {
        let Some(hybrid) = entry.hybrid.as_mut() else {
            return;
        };
        let id = entry.peer.id();
        let mut state = lock(&entry.peer.state);
        for begun in hybrid.provisional.extract_if(.., |it| is_it(it)) {
            let key = (begun.from.remote, begun.sender);
            if self.provisional_peers.get(&key) == Some(&id) {
                self.provisional_peers.remove(&key);
            }
            if let Some(index) = begun.session() {
                state.sessions.retire_provisional(index);
            }
        }
    }

    /// Confirms the handshake of session `index`: by using the session, the initiator has proven
    /// that it has its ML-KEM private key. The handshake now has effect.
    pub(crate) fn confirm_provisional(&mut self, entry: &mut PeerEntry, index: u32) {
        let Some(hybrid) = entry.hybrid.as_mut() else {
            return;
        };
        let confirmed = hybrid
            .provisional
            .iter()
            .find(|it| it.session() == Some(index));
        let Some(timestamp) = confirmed.map(|it| it.timestamp) else {
            return;
        };
        hybrid.timestamp_received = hybrid.timestamp_received.max(Some(timestamp));
        // Handshakes that are not newer are older ones of the same peer, or forged.
        self.forget_provisional(entry, |it| it.timestamp <= timestamp);
        self.pin_post_quantum(entry);
    }
}

/// Returns the peer of the handshake that `from` began with its index `sender`.
fn find_provisional_peer<'a>(
    peers: &'a mut Peers,
    core: &Core,
    from: SocketAddr,
    sender: u32,
) -> Option<&'a mut PeerEntry> {
    let id = *core.provisional_peers.get(&(from, sender))?;
    let entry = peers.entry(id)?;
    entry.find_provisional(from, sender)?;
    Some(entry)
}

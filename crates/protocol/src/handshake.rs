//! Handshakes: what a device does with initiations, responses and cookie
//! replies, and how it sends them.
//!
//! A message goes through the checks in the order of their cost: length and
//! type (by [`crate::message::classify`]), under load whether it would be
//! answered at all ([`crate::ratelimit::Askers`]), mac1, under load mac2 and
//! the source's rate, and only then Diffie-Hellman. Until the last check has
//! passed, nothing is changed but counters, rate-limit buckets and what is
//! remembered of askers.

use std::sync::Arc;

use taupe_crypto::Provider;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::Random;
use crate::cookie::{Cookie, claims_cookie};
use crate::device::{Device, Output};
use crate::hybrid::{Suite, Way, begin_hybrid};
use crate::limits::{HANDSHAKE_TOS, REKEY_TIMEOUT, UNDER_LOAD_BACKLOG, UNDER_LOAD_LATCH};
use crate::lock;
use crate::message::{CookieReply, Initiation, Kind, Macs, Malformed, Response, classify};
use crate::names;
use crate::noise::{
    Claim, InitiationFields, Initiator, NoiseError, Precomputed, ResponseFields, TransportKeys,
};
use crate::path::Cause;
use crate::peer::{Endpoint, PeerId, Traffic};
use crate::ratelimit::Asked;
use crate::session::{Role, Session};
use crate::slots::{Identity, Pending, Slot};
use crate::time::{Instant, Now, Tai64N};
use crate::timer::Reason;

impl Device {
    /// Takes a handshake message or cookie reply from `from`. `backlog` is how
    /// many more wait to be handled: from 512 on the device is under load.
    /// Returns why the message was refused, if it was.
    pub fn handle_message(
        &mut self,
        now: Now,
        from: Endpoint,
        message: &[u8],
        backlog: usize,
    ) -> Option<Cause> {
        let under_load = self.under_load(now.boot, backlog);
        let result = match classify(message) {
            Ok(kind @ Kind::Initiation) => self
                .admit(now, from, kind, message, under_load)
                .and_then(|_| self.handle_initiation(now, from, message)),
            Ok(kind @ Kind::Response) => self
                .admit(now, from, kind, message, under_load)
                .and_then(|_| self.handle_response(now, from, message)),
            Ok(kind @ Kind::HybridInitiation) => self
                .admit(now, from, kind, message, under_load)
                .and_then(|shown| self.handle_hybrid_initiation(now, from, shown, message)),
            Ok(Kind::HybridResponse) => self.handle_hybrid_response(now, from, message),
            Ok(Kind::CookieReply) => self.handle_cookie_reply(now, message),
            Ok(Kind::Data) | Err(Malformed::Type) => Err(Cause::Type),
            Err(Malformed::Length) => Err(Cause::Length),
        };
        let cause = result.err()?;
        self.path.counters().add(cause, 1);
        Some(cause)
    }

    /// Whether handshakes come faster than they are worked on, or did within
    /// the last second.
    fn under_load(&mut self, now: Instant, backlog: usize) -> bool {
        if backlog >= UNDER_LOAD_BACKLOG {
            self.loaded = Some(now);
        }
        let loaded = self
            .loaded
            .is_some_and(|at| now.since(at) < UNDER_LOAD_LATCH);
        if !loaded {
            self.loaded = None;
            self.askers.forget(now);
        }
        loaded
    }

    /// Checks mac1, and under load mac2; answers with a cookie where that is
    /// missing. Whether the sender has shown that it receives where it sends from.
    fn admit(
        &mut self,
        now: Now,
        from: Endpoint,
        kind: Kind,
        message: &[u8],
        under_load: bool,
    ) -> Result<bool, Cause> {
        if !self.up || self.identity.is_none() {
            return Err(Cause::NotReady);
        }
        let claims_cookie = claims_cookie(message);
        // In a flood most have no cookie and are given none. To find that out
        // costs less than mac1.
        let asked = (under_load && !claims_cookie)
            .then(|| self.ask(now, from, kind, message))
            .transpose()?;
        let identity = self.identity.as_mut().ok_or(Cause::NotReady)?;
        let checker = &mut identity.checker;
        if !checker.knows_key(self.crypto, message) {
            return Err(Cause::Mac1);
        }
        if !under_load {
            return Ok(false);
        }
        let random = self.random.as_mut();
        let cookie = checker.cookie(self.crypto, now.boot, random, from.remote);
        if claims_cookie && cookie.is_known(self.crypto, message) {
            let allowed = self.limiter.allow(now.boot, from.remote.ip());
            return allowed.then_some(true).ok_or(Cause::RateLimited);
        }
        let asked = match asked {
            Some(asked) => asked,
            None => self.ask(now, from, kind, message)?,
        };
        if let Some(asked) = asked {
            self.askers.give(now.boot, asked);
        }
        self.reply_cookie(from, message, &cookie)?;
        Ok(false)
    }

    /// Has the sender of a message show that it receives where it sends from: answers with a
    /// cookie unless the message was made with one.
    pub(crate) fn demand_cookie(
        &mut self,
        now: Now,
        from: Endpoint,
        message: &[u8],
    ) -> Result<(), Cause> {
        let identity = self.identity.as_mut().ok_or(Cause::NotReady)?;
        let random = self.random.as_mut();
        let checker = &mut identity.checker;
        let cookie = checker.cookie(self.crypto, now.boot, random, from.remote);
        if claims_cookie(message) && cookie.is_known(self.crypto, message) {
            let allowed = self.limiter.allow(now.boot, from.remote.ip());
            return allowed.then_some(()).ok_or(Cause::RateLimited);
        }
        self.reply_cookie(from, message, &cookie)
    }

    fn reply_cookie(
        &mut self,
        from: Endpoint,
        message: &[u8],
        cookie: &Cookie,
    ) -> Result<(), Cause> {
        let [sender, _] = indices(message).ok_or(Cause::Length)?;
        let identity = self.identity.as_ref().ok_or(Cause::NotReady)?;
        let checker = &identity.checker;
        let reply = checker.reply(self.crypto, self.random.as_mut(), cookie, message, sender);
        if let Some(reply) = reply {
            self.outputs.push_back(Output::Transmit {
                endpoint: from,
                tos: HANDSHAKE_TOS,
                datagram: reply.as_bytes().to_vec(),
            });
        }
        Err(Cause::CookieDemanded)
    }

    /// Whether a message without a cookie may be answered with one: as what its
    /// sender asks, `None` for a response that is waited for.
    fn ask(
        &mut self,
        now: Now,
        from: Endpoint,
        kind: Kind,
        message: &[u8],
    ) -> Result<Option<Asked>, Cause> {
        if kind == Kind::Response {
            let [_, receiver] = indices(message).ok_or(Cause::Length)?;
            // Only the peer knows the index of a handshake that waits for it.
            let waited_for = self.pending.contains_key(&receiver);
            return waited_for.then_some(None).ok_or(Cause::UnknownHandshake);
        }
        let random = self.random.as_mut();
        let asked = self.askers.hear(now.boot, from.remote, random);
        asked.map(Some).ok_or(Cause::CookieWithheld)
    }

    fn handle_initiation(&mut self, now: Now, from: Endpoint, message: &[u8]) -> Result<(), Cause> {
        let initiation = Initiation::read_from_bytes(message).map_err(|_| Cause::Length)?;
        let identity = self.identity.as_ref().ok_or(Cause::NotReady)?;
        let fields = InitiationFields {
            ephemeral: initiation.ephemeral,
            static_key: initiation.static_key,
            timestamp: initiation.timestamp,
        };
        let forged = |_: NoiseError| Cause::InitiationNotAuthentic;
        let claim = Claim::open(self.crypto, &identity.keys, fields).map_err(forged)?;

        let id = self
            .peers
            .find(claim.public_key())
            .ok_or(Cause::UnknownPeer)?;
        let slot = self.peers.slot(id).ok_or(Cause::UnknownPeer)?;
        if slot.refuses_ordinary() {
            return Err(Cause::PostQuantumRequired);
        }
        let precomputed = slot
            .precomputed(self.crypto, &identity.keys)
            .ok_or(Cause::InitiationNotAuthentic)?;
        let responder = claim.verify(self.crypto, &precomputed).map_err(forged)?;

        let label = responder.timestamp();
        slot.admit_label(self.crypto, now.boot, label)?;

        let ephemeral = self.random.secret();
        let (fields, keys) = responder
            .respond(self.crypto, &slot.preshared_key, ephemeral)
            .map_err(forged)?;
        self.accept_initiation(now, from, id, label, message);
        self.send_response(now, id, initiation.sender.get(), fields, &keys);
        self.settle(now, id);
        Ok(())
    }

    /// Lets an initiation count that has been verified.
    pub(crate) fn accept_initiation(
        &mut self,
        now: Now,
        from: Endpoint,
        id: PeerId,
        label: Tai64N,
        message: &[u8],
    ) {
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let handshakes = slot.handshakes(self.crypto);
        handshakes.label_received = Some(label);
        handshakes.initiation_accepted = Some(now.boot);
        let mut link = lock(&slot.peer.link);
        link.endpoint = Some(from);
        link.received(now.boot, message.len() as u64);
    }

    fn send_response(
        &mut self,
        now: Now,
        id: PeerId,
        receiver: u32,
        fields: ResponseFields,
        keys: &TransportKeys,
    ) {
        let index = self.new_index();
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let mut response = Response {
            kind: U32::new(Kind::Response as u32),
            sender: U32::new(index),
            receiver: U32::new(receiver),
            ephemeral: fields.ephemeral,
            empty: fields.empty,
            macs: Macs::default(),
        };
        slot.handshakes(self.crypto)
            .stamper
            .stamp(self.crypto, now.boot, response.as_mut_bytes());
        self.respond(
            now,
            id,
            keys,
            [index, receiver],
            response.as_bytes().to_vec(),
        );
    }

    /// Sends a response, and puts the session in place that it makes, with its indices here
    /// and at the other side.
    pub(crate) fn respond(
        &mut self,
        now: Now,
        id: PeerId,
        keys: &TransportKeys,
        [index, receiver]: [u32; 2],
        datagram: Vec<u8>,
    ) {
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let session = Arc::new(Session::new(
            self.crypto,
            keys,
            Role::Responder,
            index,
            receiver,
            now.boot,
            None,
        ));
        self.path
            .sessions
            .insert(Arc::clone(&session), Arc::clone(&slot.peer));
        let mut link = lock(&slot.peer.link);
        link.sessions.install_responded(session);
        link.handshake_sent = Some(now.boot);
        link.sent(now.boot, datagram.len() as u64, Traffic::Other);
        if let Some(endpoint) = link.endpoint {
            self.outputs.push_back(Output::Transmit {
                endpoint,
                tos: HANDSHAKE_TOS,
                datagram,
            });
        }
    }

    fn handle_response(&mut self, now: Now, from: Endpoint, message: &[u8]) -> Result<(), Cause> {
        let response = Response::read_from_bytes(message).map_err(|_| Cause::Length)?;
        let identity = self.identity.as_ref().ok_or(Cause::NotReady)?;
        let index = response.receiver.get();
        let id = *self.pending.get(&index).ok_or(Cause::UnknownHandshake)?;
        let slot = self.peers.slot(id).ok_or(Cause::UnknownHandshake)?;
        let handshakes = slot.handshakes.as_mut().ok_or(Cause::UnknownHandshake)?;
        let Some((_, Pending::Ordinary(initiator))) = &handshakes.initiation else {
            return Err(Cause::UnknownHandshake);
        };
        let fields = ResponseFields {
            ephemeral: response.ephemeral,
            empty: response.empty,
        };
        let keys = initiator
            .finish(self.crypto, &identity.keys, &slot.preshared_key, &fields)
            .map_err(|_| Cause::ResponseNotAuthentic)?;
        let finished = Finished {
            index,
            remote_index: response.sender.get(),
            keys,
            suite: None,
            bytes: message.len() as u64,
        };
        self.finish_initiation(now, from, id, finished);
        Ok(())
    }

    /// Puts the session in place that a response has made.
    pub(crate) fn finish_initiation(
        &mut self,
        now: Now,
        from: Endpoint,
        id: PeerId,
        finished: Finished,
    ) {
        let Finished {
            index,
            remote_index,
            keys,
            suite,
            bytes,
        } = finished;
        self.abandon_initiation(id);
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let session = Arc::new(Session::new(
            self.crypto,
            &keys,
            Role::Initiator,
            index,
            remote_index,
            now.boot,
            suite,
        ));
        slot.latest_handshake = Some(now.wall);
        slot.heard(&mut self.outputs);
        self.path
            .sessions
            .insert(Arc::clone(&session), Arc::clone(&slot.peer));
        let mut link = lock(&slot.peer.link);
        link.sessions.install_initiated(session);
        link.endpoint = Some(from);
        link.timers.stop(Reason::Retransmit);
        link.timers.stop(Reason::ResendParts);
        link.attempts = 0;
        link.renewed_on_receive = false;
        link.received(now.boot, bytes);
        drop(link);
        if let Some(hybrid) = &mut slot.hybrid {
            hybrid.begin_anew();
            hybrid.fell_back = suite.is_none();
        }
        if suite.is_some() {
            self.latch(id);
        }
        // The responder may not send before it has received with the new
        // session: if nothing waits to be sent, a keepalive tells it.
        self.send_keepalive(now, id);
        self.settle(now, id);
    }

    fn handle_cookie_reply(&mut self, now: Now, message: &[u8]) -> Result<(), Cause> {
        let reply = CookieReply::read_from_bytes(message).map_err(|_| Cause::Length)?;
        let index = reply.receiver.get();
        let id = match self.pending.get(&index) {
            Some(id) => Some(*id),
            None => self.path.sessions.find(index).map(|entry| entry.peer.id()),
        };
        let slot = id.and_then(|id| self.peers.slot(id));
        let slot = slot.ok_or(Cause::CookieRefused)?;
        let handshakes = slot.handshakes.as_mut().ok_or(Cause::CookieRefused)?;
        if !handshakes.stamper.receive(self.crypto, now.boot, &reply) {
            return Err(Cause::CookieRefused);
        }
        if let Some((of, Pending::Hybrid(waiting))) = &mut handshakes.initiation
            && *of == index
            && waiting.is_first_cookie()
            && let Some(hybrid) = &mut slot.hybrid
        {
            hybrid.has_cookie();
        }
        Ok(())
    }

    /// Sends an initiation, unless the last handshake message is less than
    /// Rekey-Timeout ago or it is not known where to.
    pub(crate) fn send_initiation(&mut self, now: Now, id: PeerId, retry: bool) {
        if !self.up {
            return;
        }
        let jitter = self.jitter();
        let index = self.new_index();
        let Some(identity) = self.identity.as_mut() else {
            return;
        };
        let Some(slot) = self.peers.slot(id) else {
            return;
        };
        let mut link = lock(&slot.peer.link);
        if !retry {
            link.attempts = 0;
        }
        let Some(mut endpoint) = link.endpoint else {
            return;
        };
        if !link.may_send_initiation(now.boot) {
            link.postpone_handshake();
            return;
        }
        if let Some(next) = slot.named.as_ref().and_then(|it| it.after(endpoint.remote)) {
            endpoint = names::move_endpoint(&mut link, next);
        }
        let hybrid = slot.hybrid.as_mut();
        let way = hybrid.map_or(Way::Ordinary, |hybrid| hybrid.way(link.can_send(now.boot)));
        drop(link);
        // A peer whose key is of low order stays, and never hears from us.
        let Some(precomputed) = slot.precomputed(self.crypto, &identity.keys) else {
            return;
        };
        let label = identity.label(now, slot.label_sent(), &mut self.outputs);
        let random = self.random.as_mut();
        let begin = Begin {
            precomputed: &precomputed,
            random,
            label,
            index,
        };
        let begun = match way {
            Way::Ordinary => begin_ordinary(self.crypto, now, identity, slot, begin),
            Way::Hybrid => begin_hybrid(self.crypto, now, identity, slot, begin),
        };
        let Some((pending, datagrams)) = begun else {
            return;
        };
        let resend = match &pending {
            Pending::Hybrid(waiting) => waiting.resend_at(),
            _ => None,
        };
        let handshakes = slot.handshakes(self.crypto);
        handshakes.label_sent = Some(label);
        let replaced = handshakes.initiation.replace((index, pending));
        let bytes = datagrams.iter().map(Vec::len).sum::<usize>() as u64;

        let mut link = lock(&slot.peer.link);
        if let Some(hybrid) = &mut slot.hybrid {
            hybrid.count_try();
        }
        link.handshake_sent = Some(now.boot);
        link.hurried = false;
        link.sent(now.boot, bytes, Traffic::Other);
        link.timers
            .set(Reason::Retransmit, now.boot + REKEY_TIMEOUT + jitter);
        match resend {
            Some(at) => link.timers.set(Reason::ResendParts, at),
            None => link.timers.stop(Reason::ResendParts),
        }
        link.initiations = match link.unanswered {
            Some(_) => link.initiations.saturating_add(1),
            None => 1,
        };
        let unanswered = *link.unanswered.get_or_insert(now.boot);
        drop(link);
        let silence = slot.silent(now.boot, unanswered, endpoint.remote);
        let name = slot
            .named
            .as_mut()
            .and_then(|named| named.ask(now.boot, unanswered, endpoint.remote));
        if let Some((old, _)) = replaced {
            self.pending.remove(&old);
        }
        self.pending.insert(index, id);
        let public_key = *slot.peer.public_key();
        self.transmit_parts(endpoint, datagrams);
        self.outputs.extend(silence.map(Output::Notice));
        if let Some(name) = name {
            self.outputs.push_back(Output::Resolve { public_key, name });
        }
    }

    /// A random index that neither a session nor a handshake has.
    pub(crate) fn new_index(&mut self) -> u32 {
        loop {
            let random = self.random.number();
            let index = self.place(random);
            if !self.pending.contains_key(&index) && !self.path.sessions.contains(index) {
                return index;
            }
        }
    }
}

/// What an initiation is made of, beside the keys of both sides.
pub(crate) struct Begin<'a> {
    pub(crate) precomputed: &'a Precomputed,
    pub(crate) random: &'a mut dyn Random,
    pub(crate) label: Tai64N,
    pub(crate) index: u32,
}

/// What a response leads to.
pub(crate) struct Finished {
    pub(crate) index: u32,
    pub(crate) remote_index: u32,
    pub(crate) keys: TransportKeys,
    pub(crate) suite: Option<Suite>,
    /// Of the message that completed it.
    pub(crate) bytes: u64,
}

/// Makes an ordinary initiation, with its MACs.
fn begin_ordinary(
    crypto: &Provider,
    now: Now,
    identity: &Identity,
    slot: &mut Slot,
    begin: Begin<'_>,
) -> Option<(Pending, Vec<Vec<u8>>)> {
    let (initiator, fields) = Initiator::start(
        crypto,
        &identity.keys,
        slot.peer.public_key(),
        begin.precomputed,
        begin.random.secret(),
        begin.label,
    )
    .ok()?;
    let mut initiation = Initiation {
        kind: U32::new(Kind::Initiation as u32),
        sender: U32::new(begin.index),
        ephemeral: fields.ephemeral,
        static_key: fields.static_key,
        timestamp: fields.timestamp,
        macs: Macs::default(),
    };
    let stamper = &mut slot.handshakes(crypto).stamper;
    stamper.stamp(crypto, now.boot, initiation.as_mut_bytes());
    let pending = Pending::Ordinary(Box::new(initiator));
    Some((pending, vec![initiation.as_bytes().to_vec()]))
}

/// The index that the sender of an initiation or response chose, which both have
/// in the same place, and behind it that of a response's receiver.
fn indices(message: &[u8]) -> Option<[u32; 2]> {
    let [a, b, c, d, e, f, g, h] = *message.get(4..)?.first_chunk()?;
    Some([[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes))
}

//! Handshakes: processes initiations, responses and cookie replies, and sends them.
//!
//! The checks of a message are ordered by cost: length and type (by
//! [`crate::message::classify`]); under load, whether the message would be answered at all
//! ([`crate::handshake::rate_limit::CookieLimiter`]); mac1; under load, mac2 and the source's
//! rate; and only then Diffie-Hellman. Until the last check has passed, the only state that
//! changes is counters, rate limits and the table of senders that were sent a cookie.

use std::sync::Arc;

use arrayvec::ArrayVec;
use taupe_crypto::Provider;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::device::hybrid_initiator::make_hybrid_initiation;
use crate::device::identity::DeviceIdentity;
use crate::device::indices::IndexPurpose;
use crate::device::responder::{INITIATIONS_AT_ONCE, ReceivedInitiation};
use crate::device::{Core, Device};
use crate::drop_reason::{DropReason, HandshakeResult};
use crate::endpoint::Endpoint;
use crate::handshake::cookie::{Cookie, has_mac2};
use crate::handshake::noise::{Initiator, Precomputed, ResponseFields, TransportKeys};
use crate::handshake::rate_limit::CookieGrant;
use crate::handshake::{HandshakeMessage, TakenHandshakes};
use crate::hybrid::HandshakeKind;
use crate::lanes::Sender;
use crate::limits::{HANDSHAKE_TOS, REKEY_TIMEOUT, UNDER_LOAD_BACKLOG, UNDER_LOAD_DURATION};
use crate::message::{CookieReply, Initiation, Kind, Macs, Malformed, Response, classify, indices};
use crate::output::Output;
use crate::peer::{Agreed, PeerEntry, Pending, Role, Session, Timer, Traffic, move_endpoint};
use crate::suite::Suite;
use crate::time::{Instant, Now, Tai64N};
use crate::{Random, lock};

impl Device {
    /// Processes a handshake message or cookie reply from `from`. `backlog` is the number of
    /// messages that still wait; from 512 on, the device is under load. Returns the reason if the
    /// message was dropped.
    pub fn handle_message(
        &mut self,
        now: Now,
        from: Endpoint,
        message: &[u8],
        backlog: usize,
    ) -> Option<DropReason> {
        let under_load = self.core.under_load(now.boot, backlog);
        let result = match classify(message) {
            Ok(Kind::Initiation) => {
                let received = ReceivedInitiation {
                    from,
                    message,
                    under_load,
                };
                let [result, ..] = self.handle_initiations(now, &[received]);
                result
            }
            Ok(kind @ Kind::Response) => self
                .core
                .admit(now, from, kind, message, under_load)
                .and_then(|_| self.handle_response(now, from, message)),
            Ok(kind @ Kind::HybridInitiation) => self
                .core
                .admit(now, from, kind, message, under_load)
                .and_then(|proven| self.handle_hybrid_initiation(now, from, proven, message)),
            Ok(Kind::HybridResponse) => self.handle_hybrid_response(now, from, message),
            Ok(Kind::CookieReply) => self.handle_cookie_reply(now, message),
            Ok(Kind::Data) | Err(Malformed::Type) => Err(DropReason::Type),
            Err(Malformed::Length) => Err(DropReason::Length),
        };
        self.count_refusal(result)
    }

    /// Processes handshake messages, the newest first, and removes them from `messages`. Each
    /// result is that of [`Self::handle_message`]. `backlog` is the number of messages that still
    /// wait behind all of these.
    ///
    /// This takes less time than one message after the other: initiations in a row are answered
    /// together, their scalar multiplications side by side.
    pub fn handle_messages(
        &mut self,
        now: Now,
        messages: &mut TakenHandshakes,
        backlog: usize,
        mut handled: impl FnMut(&HandshakeMessage, Option<DropReason>),
    ) {
        let mut waiting = backlog + messages.len();
        let is_initiation =
            |it: &HandshakeMessage| matches!(classify(it.bytes()), Ok(Kind::Initiation));
        for row in (messages.sort()).chunk_by(|one, next| is_initiation(one) && is_initiation(next))
        {
            if let [message] = row {
                waiting -= 1;
                let refused = self.handle_message(now, message.from, message.bytes(), waiting);
                handled(message, refused);
                continue;
            }
            for together in row.chunks(INITIATIONS_AT_ONCE) {
                let received: ArrayVec<_, INITIATIONS_AT_ONCE> = (together.iter())
                    .map(|message| {
                        waiting -= 1;
                        ReceivedInitiation {
                            from: message.from,
                            message: message.bytes(),
                            under_load: self.core.under_load(now.boot, waiting),
                        }
                    })
                    .collect();
                let results = self.handle_initiations(now, &received);
                for (message, result) in together.iter().zip(results) {
                    handled(message, self.count_refusal(result));
                }
            }
        }
        messages.clear();
    }

    fn count_refusal(&self, result: Result<(), DropReason>) -> Option<DropReason> {
        let reason = result.err()?;
        self.core.path.counters().add(reason, 1);
        Some(reason)
    }

    fn handle_response(
        &mut self,
        now: Now,
        from: Endpoint,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let response = Response::read_from_bytes(message).map_err(|_| DropReason::Length)?;
        let identity = self.core.identity.as_ref().ok_or(DropReason::NotReady)?;
        let index = response.receiver.get();
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
        let Some((_, Pending::Ordinary(initiator))) = &handshakes.initiation else {
            return Err(DropReason::UnknownHandshake);
        };
        let fields = ResponseFields {
            ephemeral: response.ephemeral,
            empty: response.empty,
        };
        let keys = initiator
            .finish(
                self.core.crypto,
                &identity.keys,
                &entry.preshared_key,
                &fields,
            )
            .map_err(|_| DropReason::ResponseNotAuthentic)?;
        let finished = CompletedHandshake {
            index,
            remote_index: response.sender.get(),
            keys,
            suite: None,
            bytes: message.len() as u64,
        };
        self.core.finish_initiation(now, from, entry, finished);
        Ok(())
    }

    fn handle_cookie_reply(&mut self, now: Now, message: &[u8]) -> Result<(), DropReason> {
        let reply = CookieReply::read_from_bytes(message).map_err(|_| DropReason::Length)?;
        let index = reply.receiver.get();
        let id = match self.core.pending.get(&index) {
            Some(id) => Some(*id),
            None => self
                .core
                .path
                .sessions
                .find(index)
                .map(|entry| entry.peer.id()),
        };
        let entry = id.and_then(|id| self.peers.entry(id));
        let entry = entry.ok_or(DropReason::CookieRefused)?;
        let handshakes = entry.handshakes.as_mut().ok_or(DropReason::CookieRefused)?;
        if !handshakes
            .mac_writer
            .receive(self.core.crypto, now.boot, &reply)
        {
            return Err(DropReason::CookieRefused);
        }
        if let Some((of, Pending::Hybrid(initiation))) = &mut handshakes.initiation
            && *of == index
            && initiation.note_first_cookie()
            && let Some(hybrid) = &mut entry.hybrid
        {
            hybrid.note_cookie();
        }
        Ok(())
    }
}

impl Core {
    /// Checks whether the queue of handshake messages is long, or was within the last second
    /// ([`UNDER_LOAD_DURATION`]).
    fn under_load(&mut self, now: Instant, backlog: usize) -> bool {
        if backlog >= UNDER_LOAD_BACKLOG {
            self.under_load_since = Some(now);
        }
        let loaded = self
            .under_load_since
            .is_some_and(|at| now.since(at) < UNDER_LOAD_DURATION);
        if !loaded {
            self.under_load_since = None;
            self.cookie_limiter.forget(now);
        }
        loaded
    }

    /// Checks mac1, and under load mac2 and the rate of the source. Under load, answers a message
    /// without a valid mac2 with a cookie. Returns `true` if the sender has proven its address
    /// with a cookie.
    pub(crate) fn admit(
        &mut self,
        now: Now,
        from: Endpoint,
        kind: Kind,
        message: &[u8],
        under_load: bool,
    ) -> Result<bool, DropReason> {
        if !self.up || self.identity.is_none() {
            return Err(DropReason::NotReady);
        }
        let has_mac2 = has_mac2(message);
        // In a flood, most messages have no cookie and get none. This check costs less than mac1.
        let grant = (under_load && !has_mac2)
            .then(|| self.check_cookie_limit(now, from, kind, message))
            .transpose()?;
        let identity = self.identity.as_mut().ok_or(DropReason::NotReady)?;
        let checker = &mut identity.checker;
        if !checker.verify_mac1(self.crypto, message) {
            return Err(DropReason::Mac1);
        }
        if !under_load {
            return Ok(false);
        }
        let random = self.random.as_mut();
        let cookie = checker.cookie(self.crypto, now.boot, random, from.remote);
        if has_mac2 && cookie.verify_mac2(self.crypto, message) {
            let allowed = self.limiter.allow(now.boot, from.remote.ip());
            return allowed.then_some(true).ok_or(DropReason::RateLimited);
        }
        let grant = match grant {
            Some(grant) => grant,
            None => self.check_cookie_limit(now, from, kind, message)?,
        };
        if let Some(grant) = grant {
            self.cookie_limiter.grant(now.boot, grant);
        }
        Err(self.refuse_with_cookie(from, message, &cookie))
    }

    /// Checks that the message has a valid mac2, which proves that its sender received a cookie; if
    /// not, sends a cookie. Then checks that the source is within its rate limit.
    pub(crate) fn demand_cookie(
        &mut self,
        now: Now,
        from: Endpoint,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let identity = self.identity.as_mut().ok_or(DropReason::NotReady)?;
        let random = self.random.as_mut();
        let checker = &mut identity.checker;
        let cookie = checker.cookie(self.crypto, now.boot, random, from.remote);
        if has_mac2(message) && cookie.verify_mac2(self.crypto, message) {
            let allowed = self.limiter.allow(now.boot, from.remote.ip());
            return allowed.then_some(()).ok_or(DropReason::RateLimited);
        }
        Err(self.refuse_with_cookie(from, message, &cookie))
    }

    fn refuse_with_cookie(
        &mut self,
        from: Endpoint,
        message: &[u8],
        cookie: &Cookie,
    ) -> DropReason {
        let (Some(identity), Some([sender, _])) = (&self.identity, indices(message)) else {
            return DropReason::NotReady;
        };
        let random = self.random.as_mut();
        let reply = (identity.checker).reply(self.crypto, random, cookie, message, sender);
        if let Some(reply) = reply {
            self.outputs.push_back(Output::Transmit {
                endpoint: from,
                tos: HANDSHAKE_TOS,
                datagram: reply.as_bytes().to_vec(),
            });
        }
        DropReason::CookieDemanded
    }

    /// Checks whether a message without a cookie may be answered with one. Returns the grant to
    /// record, or `None` for a response that this device waits for: it gets its cookie anyway.
    fn check_cookie_limit(
        &mut self,
        now: Now,
        from: Endpoint,
        kind: Kind,
        message: &[u8],
    ) -> Result<Option<CookieGrant>, DropReason> {
        if kind == Kind::Response {
            let [_, receiver] = indices(message).ok_or(DropReason::Length)?;
            // The index was random: only the peer, and observers of the initiation, know it.
            let waited_for = self.pending.contains_key(&receiver);
            return waited_for
                .then_some(None)
                .ok_or(DropReason::UnknownHandshake);
        }
        let random = self.random.as_mut();
        let grant = self.cookie_limiter.check(now.boot, from.remote, random);
        grant.map(Some).ok_or(DropReason::CookieWithheld)
    }

    /// Installs the session that a response has completed.
    pub(crate) fn finish_initiation(
        &mut self,
        now: Now,
        from: Endpoint,
        entry: &mut PeerEntry,
        finished: CompletedHandshake,
    ) {
        let CompletedHandshake {
            index,
            remote_index,
            keys,
            suite,
            bytes,
        } = finished;
        self.abandon_initiation(entry);
        let lanes = self.initiator_lanes(entry, index, remote_index);
        let agreed = Agreed {
            role: Role::Initiator,
            local_index: index,
            remote_index,
            suite,
            lanes,
        };
        let session = Arc::new(Session::new(self.crypto, &keys, agreed, now.boot));
        entry.latest_handshake = Some(now.wall);
        entry.note_session(&mut self.outputs);
        self.path
            .counters()
            .count_handshake(HandshakeResult::Initiated);
        self.path
            .sessions
            .insert(Arc::clone(&session), Arc::clone(&entry.peer));
        let mut state = lock(&entry.peer.state);
        if let Some(sent) = state.initiation.last_sent {
            self.path
                .counters()
                .add_handshake_time(now.boot.since(sent));
        }
        state.sessions.install_initiated(session);
        state.lanes.note_session(lanes);
        state.endpoint = Some(from);
        state.timers.stop(Timer::Retransmit);
        state.timers.stop(Timer::ResendParts);
        state.initiation.attempts = 0;
        state.sessions.renewed_on_receive = false;
        state.received(now.boot, bytes);
        drop(state);
        if let Some(hybrid) = &mut entry.hybrid {
            hybrid.restart();
            hybrid.fell_back = suite.is_none();
        }
        if suite.is_some() {
            self.pin_post_quantum(entry);
        }
        // The responder may send only after it has received a packet of the new session:
        // send the waiting packets now, or a keepalive if none waits.
        self.send_keepalive(now, entry);
        self.run_pending_work(now, entry);
    }

    /// Sends an initiation if the peer has an endpoint. If the last handshake message is less
    /// than Rekey-Timeout ago, schedules the initiation instead.
    pub(crate) fn send_initiation(&mut self, now: Now, entry: &mut PeerEntry, retry: bool) {
        if !self.up {
            return;
        }
        let jitter = self.jitter();
        let Some(identity) = self.identity.as_mut() else {
            return;
        };
        let mut state = lock(&entry.peer.state);
        if !retry {
            state.initiation.attempts = 0;
        }
        let Some(mut endpoint) = state.endpoint else {
            return;
        };
        if !state.may_send_initiation(now.boot) {
            state.postpone_handshake();
            return;
        }
        if let Some(next) = entry
            .named_endpoint
            .as_ref()
            .and_then(|it| it.next_address(endpoint.remote))
        {
            endpoint = move_endpoint(&mut state, next);
        }
        let hybrid = entry.hybrid.as_mut();
        let kind = hybrid.map_or(HandshakeKind::Ordinary, |hybrid| {
            hybrid.next_kind(state.can_send(now.boot))
        });
        let spread = state.lanes.expected_spread(self.path.steering().lanes());
        drop(state);
        // A peer whose key is of low order stays configured, but no initiation is sent to it.
        let Some(precomputed) = entry.precomputed(self.crypto, &identity.keys) else {
            return;
        };
        let timestamp = identity.timestamp(now, entry.timestamp_sent(), &mut self.outputs);
        let purpose = IndexPurpose {
            peer: entry.peer.id(),
            precomputed: &precomputed,
            timestamp,
        };
        let index = self.new_index(&purpose, Sender::Initiator, spread);
        let Some(identity) = self.identity.as_ref() else {
            return;
        };
        let random = self.random.as_mut();
        let begin = InitiationInputs {
            precomputed: &precomputed,
            random,
            timestamp,
            index,
        };
        let begun = match kind {
            HandshakeKind::Ordinary => {
                make_ordinary_initiation(self.crypto, now, identity, entry, begin)
            }
            HandshakeKind::Hybrid => {
                make_hybrid_initiation(self.crypto, now, identity, entry, begin)
            }
        };
        let Some((pending, datagrams)) = begun else {
            return;
        };
        let resend = match &pending {
            Pending::Hybrid(initiation) => initiation.resend_at(),
            _ => None,
        };
        let handshakes = entry.handshakes(self.crypto);
        handshakes.timestamp_sent = Some(timestamp);
        let replaced = handshakes.initiation.replace((index, pending));
        let bytes = datagrams.iter().map(Vec::len).sum::<usize>() as u64;

        let mut state = lock(&entry.peer.state);
        if let Some(hybrid) = &mut entry.hybrid {
            hybrid.count_attempt();
        }
        state.initiation.last_sent = Some(now.boot);
        state.initiation.network_changed = false;
        state.sent(now.boot, bytes, Traffic::Other);
        state
            .timers
            .set(Timer::Retransmit, now.boot + REKEY_TIMEOUT + jitter);
        match resend {
            Some(at) => state.timers.set(Timer::ResendParts, at),
            None => state.timers.stop(Timer::ResendParts),
        }
        state.initiation.count = match state.initiation.unanswered {
            Some(_) => state.initiation.count.saturating_add(1),
            None => 1,
        };
        let unanswered = *state.initiation.unanswered.get_or_insert(now.boot);
        drop(state);
        let silence = entry.unreachable_notice(now.boot, unanswered, endpoint.remote);
        let name = entry
            .named_endpoint
            .as_mut()
            .and_then(|named| named.request_lookup(now.boot, unanswered, endpoint.remote));
        if let Some((old, _)) = replaced {
            self.pending.remove(&old);
        }
        self.pending.insert(index, entry.peer.id());
        let public_key = *entry.peer.public_key();
        self.transmit_parts(endpoint, datagrams);
        self.outputs.extend(silence.map(Output::Notice));
        if let Some(name) = name {
            self.outputs.push_back(Output::Resolve { public_key, name });
        }
    }
}

/// Inputs of an initiation besides the static keys.
pub(crate) struct InitiationInputs<'a> {
    pub(crate) precomputed: &'a Precomputed,
    pub(crate) random: &'a mut dyn Random,
    pub(crate) timestamp: Tai64N,
    pub(crate) index: u32,
}

/// Result of a verified response.
pub(crate) struct CompletedHandshake {
    pub(crate) index: u32,
    pub(crate) remote_index: u32,
    pub(crate) keys: TransportKeys,
    pub(crate) suite: Option<Suite>,
    /// Length of the message that completed the handshake.
    pub(crate) bytes: u64,
}

/// Makes an ordinary initiation with its MACs.
fn make_ordinary_initiation(
    crypto: &Provider,
    now: Now,
    identity: &DeviceIdentity,
    entry: &mut PeerEntry,
    begin: InitiationInputs<'_>,
) -> Option<(Pending, Vec<Vec<u8>>)> {
    let (initiator, fields) = Initiator::start(
        crypto,
        &identity.keys,
        entry.peer.public_key(),
        begin.precomputed,
        begin.random.secret(),
        begin.timestamp,
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
    let mac_writer = &mut entry.handshakes(crypto).mac_writer;
    mac_writer.write_macs(crypto, now.boot, initiation.as_mut_bytes());
    let pending = Pending::Ordinary(Box::new(initiator));
    Some((pending, vec![initiation.as_bytes().to_vec()]))
}

//! The part of a tunnel that is under its lock: handshakes, timers, and queues of datagrams and
//! packets to send.
//!
//! This module drives the device itself, without `taupe_runtime::driver`. The driver takes
//! handshake messages from a queue, the newest first; here a call handles its one message and
//! returns the answer or the error. The driver saves timestamps and looks endpoint names up; this
//! library leaves both to its caller. It also reads the clock and logs by itself, with
//! dependencies that a C program would have to link.

use core::fmt;
use core::iter;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use taupe_protocol::limits::UNDER_LOAD_BACKLOG;
use taupe_protocol::message::{INITIATION_LEN, Kind, LONGEST_HANDSHAKE, RESPONSE_LEN, classify};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::{DeviceUpdate, PeerUpdate};
use taupe_protocol::{
    DataPath, Device, DropReason, Endpoint, LaneId, Outbound, Output, Peer, Role, Staged,
};

use super::load::Load;
use super::{MAX_WAITING, OVERHEAD, Outcome, Result, UNKNOWN_ENDPOINT, earlier};
use crate::clock;
use crate::error::Error;
use crate::log::Level;

/// Queued datagrams, at most. A further one replaces the oldest.
const MAX_DATAGRAMS: usize = 64;

pub(super) struct Control {
    device: Device,
    peer: Arc<Peer>,
    /// Datagrams of the protocol that no call has returned yet.
    datagrams: VecDeque<Vec<u8>>,
    /// Packets that are queued until there is a session.
    waiting: VecDeque<Vec<u8>>,
    load: Load,
    /// The persistent keepalive in seconds, until the time at which it starts.
    keepalive: Option<(Instant, u16)>,
    initiation_sent: Option<Instant>,
    /// The index of the current session.
    session: Option<u32>,
    /// Packets sent from the queue, and their bytes.
    pub(super) sent_from_queue: (u64, u64),
    pub(super) rtt: Option<Duration>,
    pub(super) sessions: u64,
    pub(super) expired: bool,
    pub(super) hybrid: bool,
    pub(super) latched: bool,
    events: Vec<Event>,
}

pub(super) enum Event {
    Sent(Kind),
    Refused(Kind, DropReason),
    Session(Role, u32),
    Erased,
    GivenUp(usize),
}

impl Event {
    pub(super) fn level(&self) -> Level {
        match self {
            Self::GivenUp(_) => Level::Error,
            Self::Session(..) | Self::Erased => Level::Info,
            Self::Sent(_) | Self::Refused(..) => Level::Debug,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |kind: &Kind| match kind {
            Kind::Initiation => "initiation",
            Kind::Response => "response",
            Kind::CookieReply => "cookie reply",
            Kind::Data => "data message",
            Kind::HybridInitiation => "part of a hybrid initiation",
            Kind::HybridResponse => "part of a hybrid response",
        };
        match self {
            Self::Sent(kind) => write!(f, "sending: {}", name(kind)),
            Self::Refused(kind, cause) => write!(f, "refused: {}: {cause}", name(kind)),
            Self::Session(Role::Initiator, index) => {
                write!(f, "session {index:08x} has begun, of this side's making")
            }
            Self::Session(Role::Responder, index) => {
                write!(f, "session {index:08x} has begun, of the peer's making")
            }
            Self::Erased => f.write_str("the last session has been erased"),
            Self::GivenUp(0) => f.write_str("the peer does not answer, and has been given up"),
            Self::GivenUp(lost) => write!(
                f,
                "the peer does not answer, and has been given up; {lost} packets are lost"
            ),
        }
    }
}

impl Control {
    pub(super) fn new(device: Device, peer: Arc<Peer>, now: Instant, keepalive: u16) -> Self {
        Self {
            device,
            peer,
            datagrams: VecDeque::new(),
            waiting: VecDeque::new(),
            load: Load::default(),
            keepalive: (keepalive > 0).then(|| (clock::after(now, keepalive), keepalive)),
            initiation_sent: None,
            session: None,
            sent_from_queue: (0, 0),
            rtt: None,
            sessions: 0,
            expired: false,
            hybrid: false,
            latched: false,
            events: Vec::new(),
        }
    }

    /// Does the work that the packet path has requested.
    pub(super) fn run_pending_work(&mut self, now: Now) {
        self.device.handle_pending_work(now);
        self.handle_outputs(now);
    }

    pub(super) fn update(&mut self, now: Now, update: DeviceUpdate) {
        // This cannot fail: it changes the one peer of the device.
        let _ = self.device.update(now, update);
        self.handle_outputs(now);
    }

    /// Queues packets until there is a session, and starts a handshake unless one is in progress.
    pub(super) fn queue_packets<'a>(
        &mut self,
        path: &DataPath,
        now: Now,
        packets: impl Iterator<Item = &'a [u8]>,
        dst: &mut [u8],
    ) -> Result {
        if dst.len() < self.longest_handshake() {
            return Err(Error::DestinationBufferTooSmall);
        }
        self.expired = false;
        for packet in packets {
            if self.waiting.len() < MAX_WAITING {
                self.waiting.push_back(packet.to_vec());
            } else {
                path.counters().add(DropReason::StagedOverflow, 1);
            }
        }
        // Further packets must not prolong the attempts of a handshake in progress.
        if !self.peer.has_unanswered_initiation() {
            path.stage(now.boot, &self.peer, iter::empty());
        }
        self.run_pending_work(now);
        match self.emit(path, now, dst) {
            // The packets have been queued.
            Err(Error::DestinationBufferTooSmall) => Ok(Outcome::Done),
            outcome => outcome,
        }
    }

    pub(super) fn keepalive(&mut self, path: &DataPath, now: Now) {
        self.expired = false;
        let keepalive = Staged {
            packet: Vec::new(),
            ecn: 0,
            lane: LaneId::FIRST,
        };
        path.stage(now.boot, &self.peer, iter::once(keepalive));
        self.run_pending_work(now);
    }

    pub(super) fn forget_keepalive(&mut self) {
        self.keepalive = None;
    }

    pub(super) fn force_handshake(&mut self, now: Now) {
        self.expired = false;
        let mut before = core::mem::take(&mut self.datagrams);
        let key = *self.peer.public_key();
        self.device.initiate(now, &key);
        self.handle_outputs(now);
        // Drop earlier initiations that have not been sent.
        before.retain(|datagram| {
            !matches!(
                classify(datagram),
                Ok(Kind::Initiation | Kind::HybridInitiation)
            )
        });
        self.datagrams.append(&mut before);
    }

    pub(super) fn tick(&mut self, now: Now) {
        if let Some((_, seconds)) = self.keepalive.take_if(|(at, _)| *at <= now.boot) {
            let mut peer = PeerUpdate::new(*self.peer.public_key());
            peer.update_only = true;
            peer.persistent_keepalive = Some(seconds);
            self.update(
                now,
                DeviceUpdate {
                    peers: vec![peer],
                    ..Default::default()
                },
            );
        }
        let awaited = self.peer.has_unanswered_initiation();
        let session = self.session.is_some();
        self.device.handle_deadline(now);
        self.run_pending_work(now);
        if self.peer.has_unanswered_initiation() {
            return;
        }
        let given_up = awaited && !self.peer.has_session(now.boot);
        let erased = session && self.session.is_none();
        if given_up {
            self.events.push(Event::GivenUp(self.waiting.len()));
        } else if erased {
            self.events.push(Event::Erased);
        }
        if given_up || erased {
            self.expired = true;
            self.waiting.clear();
        }
    }

    /// Handles a handshake message or cookie reply.
    pub(super) fn handshake(
        &mut self,
        now: Now,
        from: Option<SocketAddr>,
        kind: Kind,
        message: &[u8],
    ) -> core::result::Result<(), DropReason> {
        let begins = kind != Kind::CookieReply;
        let taken = match from {
            None if begins && self.load.refuses_unknown(now.boot) => Some(DropReason::RateLimited),
            None => self
                .device
                .handle_message(now, UNKNOWN_ENDPOINT.into(), message, 0),
            Some(from) => {
                let backlog = if self.load.is_high(now.boot) {
                    UNDER_LOAD_BACKLOG
                } else {
                    0
                };
                let from = Endpoint::from(from);
                self.device.handle_message(now, from, message, backlog)
            }
        };
        // A sender that does not know this side's public key must not cause load.
        if begins && !matches!(taken, Some(DropReason::Mac1 | DropReason::RateLimited)) {
            self.load.count(now.boot);
        }
        self.handle_outputs(now);
        match taken {
            // These need no error: a cookie has been sent, or the part was already known.
            None | Some(DropReason::CookieDemanded | DropReason::PartRepeated) => Ok(()),
            Some(cause) => {
                self.events.push(Event::Refused(kind, cause));
                Err(cause)
            }
        }
    }

    /// Writes the next datagram to send: first datagrams of the protocol, then queued packets.
    pub(super) fn emit(&mut self, path: &DataPath, now: Now, dst: &mut [u8]) -> Result {
        if let Some(datagram) = self.datagrams.front() {
            let room = dst.get_mut(..datagram.len());
            room.ok_or(Error::DestinationBufferTooSmall)?
                .copy_from_slice(datagram);
            let length = datagram.len();
            self.datagrams.pop_front();
            return Ok(Outcome::Network(length));
        }
        let Some(packet) = self.waiting.front() else {
            return Ok(Outcome::Done);
        };
        if !self.peer.has_session(now.boot) {
            return Ok(Outcome::Done);
        }
        let room = dst.len().checked_sub(OVERHEAD);
        let room = room.filter(|room| *room >= packet.len());
        let room = room.ok_or(Error::DestinationBufferTooSmall)?;
        let padded = taupe_protocol::padded_len(packet.len(), super::MIN_MTU);
        let length = padded.min(room).min(packet.len().max(super::MIN_MTU)) + OVERHEAD;
        let Outbound::Send(mut reservation) = path.reserve(now.boot, &self.peer, 1, length as u64)
        else {
            return Ok(Outcome::Done);
        };
        let message = &mut dst[..length];
        let (start, rest) = message[super::OFFSET..].split_at_mut(packet.len());
        start.copy_from_slice(packet);
        rest.fill(0);
        reservation.seal(message, length);
        self.sent_from_queue.0 += 1;
        self.sent_from_queue.1 += packet.len() as u64;
        self.waiting.pop_front();
        Ok(Outcome::Network(length))
    }

    /// Writes the next datagram like [`Self::emit`], but leaves a queued packet that does not fit to
    /// a later call.
    pub(super) fn emit_if_it_fits(&mut self, path: &DataPath, now: Now, dst: &mut [u8]) -> Result {
        let fits = |packet: &Vec<u8>| packet.len() + OVERHEAD <= dst.len();
        if self.datagrams.is_empty() && !self.waiting.front().is_none_or(fits) {
            return Ok(Outcome::Done);
        }
        self.emit(path, now, dst)
    }

    pub(super) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let sendable = !self.waiting.is_empty() && self.peer.has_session(now);
        if !self.datagrams.is_empty() || sendable || self.device.has_pending_work() {
            return Some(now);
        }
        let device = self.device.next_deadline().map(|(at, _)| at);
        earlier(device, self.keepalive.map(|(at, _)| at))
    }

    /// Returns the least buffer size for a call that may start a handshake.
    pub(super) fn longest_handshake(&self) -> usize {
        if self.hybrid {
            LONGEST_HANDSHAKE
        } else {
            INITIATION_LEN
        }
    }

    /// Returns the least buffer size for a keepalive, or for the datagram before it in the queue.
    pub(super) fn longest_next(&self, now: Instant) -> usize {
        let first = self.datagrams.front().map_or(0, Vec::len);
        let keepalive = match self.peer.has_session(now) {
            true => OVERHEAD,
            false => self.longest_handshake(),
        };
        first.max(keepalive)
    }

    /// Returns the least buffer size for the answer to a message of `kind`.
    pub(super) fn longest_answer(&self, kind: Kind) -> usize {
        match kind {
            Kind::Initiation => RESPONSE_LEN,
            Kind::HybridInitiation => LONGEST_HANDSHAKE,
            Kind::Response | Kind::HybridResponse => OVERHEAD,
            Kind::CookieReply | Kind::Data => 0,
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.events)
    }

    /// Handles the device's output, and detects new sessions.
    fn handle_outputs(&mut self, now: Now) {
        while let Some(output) = self.device.poll_output() {
            match output {
                Output::Transmit { datagram, .. } => self.push(now.boot, datagram),
                Output::PinPostQuantum { pinned, .. } => self.latched = pinned,
                // The library saves no timestamps, and has no endpoint names.
                Output::ReserveTimestamps { .. } | Output::Resolve { .. } | Output::Notice(_) => {}
            }
        }
        let session = self.peer.session();
        let index = session.as_ref().map(|session| session.local_index());
        if index == self.session {
            return;
        }
        self.session = index;
        if let Some(session) = session {
            self.sessions += 1;
            self.expired = false;
            let sent = self.initiation_sent.take();
            if session.role() == Role::Initiator {
                self.rtt = sent.map(|sent| now.boot.since(sent));
            }
            self.events
                .push(Event::Session(session.role(), session.local_index()));
        }
    }

    fn push(&mut self, now: Instant, datagram: Vec<u8>) {
        if let Ok(kind) = classify(&datagram) {
            if matches!(kind, Kind::Initiation | Kind::HybridInitiation) {
                self.initiation_sent = Some(now);
            }
            if kind != Kind::Data {
                self.events.push(Event::Sent(kind));
            }
        }
        if self.datagrams.len() == MAX_DATAGRAMS {
            self.datagrams.pop_front();
        }
        self.datagrams.push_back(datagram);
    }
}

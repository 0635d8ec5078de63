//! A small device: a tunnel to one other end, as a state machine without I/O.
//!
//! **For comparison only.** Transport data are WireGuard's (whitepaper §5.4.6), without padding.
//! There are no cookies, no retransmission by a timer and no roaming. The caller sends the returned
//! datagrams to the only address it knows, and the next packet repeats a lost initiation. A packet
//! that arrives after a later one of its session is dropped.

use std::collections::VecDeque;
use std::time::Duration;

use taupe_crypto::{AeadKey, Packet, Provider, TAG_LEN};

use crate::error::Error;
use crate::handshake::{End, Initiator, Random, Responder, Session};

/// Age at which a session is replaced when there is a packet to send (Rekey-After-Time).
const RENEW_AFTER: Duration = Duration::from_secs(120);
/// Interval between two initiations (Rekey-Timeout).
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Limit of packets that wait for a session.
const MAX_WAITING: usize = 64;
/// Type of transport data.
const DATA: u32 = 4;
/// Bytes before the ciphertext: type, receiver, counter.
const HEADER_LEN: usize = 16;

/// A tunnel to one other end.
pub struct Device {
    crypto: &'static Provider,
    end: End,
    /// The sessions for receiving: the one for sending first, and the one before it.
    sessions: VecDeque<Keys>,
    pending: Option<Initiator>,
    /// Time of the last initiation.
    initiated: Option<Duration>,
    /// The greatest received timestamp.
    label: Option<[u8; 12]>,
    waiting: VecDeque<Vec<u8>>,
    next_index: u32,
}

/// Result of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A packet from the other end. It is empty for a keepalive.
    Packet(Vec<u8>),
    /// Datagrams to send to the other end.
    Send(Vec<Vec<u8>>),
}

/// Keys of a session, with their counters.
struct Keys {
    local_index: u32,
    remote_index: u32,
    sealer: Box<dyn AeadKey>,
    opener: Box<dyn AeadKey>,
    made: Duration,
    sent: u64,
    /// One above the greatest counter received.
    received: u64,
}

impl Device {
    /// Creates the device of an end. It has no session yet.
    #[must_use]
    pub fn new(crypto: &'static Provider, end: End) -> Self {
        Self {
            crypto,
            end,
            sessions: VecDeque::new(),
            pending: None,
            initiated: None,
            label: None,
            waiting: VecDeque::new(),
            next_index: 1,
        }
    }

    /// Accepts a packet for the other end at `now`, the time since 1970. Returns the datagram to
    /// send: transport data, or an initiation while the packet waits for a session.
    pub fn send(&mut self, now: Duration, packet: &[u8], random: Random<'_>) -> Option<Vec<u8>> {
        if let Some(keys) = self.sessions.front_mut()
            && now.saturating_sub(keys.made) < RENEW_AFTER
        {
            return Some(keys.seal(packet));
        }
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(packet.to_vec());
        let is_due = |at: Duration| now.saturating_sub(at) >= RETRY_AFTER;
        if !self.initiated.is_none_or(is_due) {
            return None;
        }
        self.initiated = Some(now);
        let index = self.index();
        let (initiator, initiation) = Initiator::start(&self.end, index, tai64n(now), random);
        self.pending = Some(initiator);
        Some(initiation)
    }

    /// Processes a datagram from the other end.
    ///
    /// # Errors
    ///
    /// Those of the handshake for its messages; for transport data [`Error::NotAuthentic`], also if
    /// its counter or its session is not current; for an initiation whose timestamp is not greater
    /// than the last one, [`Error::Repeated`].
    pub fn receive(
        &mut self,
        now: Duration,
        datagram: &[u8],
        random: Random<'_>,
    ) -> Result<Received, Error> {
        if number(datagram, 0) == Some(DATA) {
            return self.open(datagram).map(Received::Packet);
        }
        if datagram.len() == self.end.response_len() {
            let pending = self.pending.as_ref().ok_or(Error::NotAuthentic)?;
            let session = pending.finish(&self.end, datagram)?;
            self.pending = None;
            self.initiated = None;
            let mut keys = Keys::new(self.crypto, &session, now);
            // At least one packet is waiting, so the responder receives in the new session before
            // it sends.
            let datagrams = self.waiting.drain(..).map(|it| keys.seal(&it)).collect();
            self.install(keys);
            return Ok(Received::Send(datagrams));
        }
        let index = self.index();
        let responder = Responder::accept(&self.end, datagram)?;
        let label = responder.label();
        if self.label.is_some_and(|last| label <= last) {
            return Err(Error::Repeated);
        }
        let (response, session) = responder.respond(index, random);
        self.label = Some(label);
        let keys = Keys::new(self.crypto, &session, now);
        self.install(keys);
        Ok(Received::Send(vec![response]))
    }

    fn open(&mut self, datagram: &[u8]) -> Result<Vec<u8>, Error> {
        let receiver = number(datagram, 4).ok_or(Error::NotAuthentic)?;
        let (header, data) = datagram
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::NotAuthentic)?;
        let [.., a, b, c, d, e, f, g, h] = *header;
        let counter = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let keys = self
            .sessions
            .iter_mut()
            .find(|keys| keys.local_index == receiver && keys.received <= counter)
            .ok_or(Error::NotAuthentic)?;
        let mut data = data.to_vec();
        let mut authentic = [false];
        let packet = Packet {
            counter,
            data: &mut data,
        };
        keys.opener.open(&mut [packet], &mut authentic);
        if authentic != [true] {
            return Err(Error::NotAuthentic);
        }
        keys.received = counter.saturating_add(1);
        data.truncate(data.len() - TAG_LEN);
        Ok(data)
    }

    fn install(&mut self, keys: Keys) {
        self.sessions.truncate(1);
        self.sessions.push_front(keys);
    }

    fn index(&mut self) -> u32 {
        let index = self.next_index;
        self.next_index = index.wrapping_add(1);
        index
    }
}

impl Keys {
    fn new(crypto: &Provider, session: &Session, now: Duration) -> Self {
        Self {
            local_index: session.local_index,
            remote_index: session.remote_index,
            sealer: crypto.aead.key(&session.send),
            opener: crypto.aead.key(&session.receive),
            made: now,
            sent: 0,
            received: 0,
        }
    }

    fn seal(&mut self, packet: &[u8]) -> Vec<u8> {
        let counter = self.sent;
        self.sent += 1;
        let mut datagram = Vec::with_capacity(HEADER_LEN + packet.len() + TAG_LEN);
        datagram.extend_from_slice(&DATA.to_le_bytes());
        datagram.extend_from_slice(&self.remote_index.to_le_bytes());
        datagram.extend_from_slice(&counter.to_le_bytes());
        datagram.extend_from_slice(packet);
        datagram.extend_from_slice(&[0; TAG_LEN]);
        let data = &mut datagram[HEADER_LEN..];
        self.sealer.seal(&mut [Packet { counter, data }]);
        datagram
    }
}

/// Returns the little-endian number at an offset.
fn number(datagram: &[u8], at: usize) -> Option<u32> {
    let bytes = datagram.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Returns the time as a TAI64N timestamp.
fn tai64n(now: Duration) -> [u8; 12] {
    // TAI was 10 s ahead of UTC in 1970.
    const EPOCH: u64 = (1 << 62) + 10;
    let mut label = [0; 12];
    label[..8].copy_from_slice(&(EPOCH + now.as_secs()).to_be_bytes());
    label[8..].copy_from_slice(&now.subsec_nanos().to_be_bytes());
    label
}

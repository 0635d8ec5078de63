//! Parsers of the answers to `get` and `set`, for clients.

use core::mem;
use core::time::Duration;
use std::borrow::Cow;
use taupe_protocol::Lanes;
use taupe_protocol::key::{PresharedKey, PublicKey};
use taupe_protocol::limits::MAX_PEERS;
use taupe_protocol::time::Instant;
use taupe_protocol::update::{
    DeviceStatus, LaneStatus, PeerStatus, SessionStatus, Suite, Unanswered,
};
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use super::set::{endpoint, endpoint_name, post_quantum};
use super::{MAX_LINE, ScopeLookup};
use crate::key::Encoding;
use crate::prefix;
use crate::text::decimal;

/// State of a device.
pub struct Device {
    /// The name of its interface.
    pub name: String,
    /// Its public key, if it has a private key. The UAPI does not transmit it: the caller computes
    /// it.
    pub public_key: Option<PublicKey>,
    /// The UDP port; 0 if it has none yet.
    pub listen_port: u16,
    /// The mark of the outer packets; 0 is off.
    pub fwmark: u32,
    /// Its counters that are not 0.
    pub counters: Vec<Counter>,
    /// Its private key and its peers.
    pub status: DeviceStatus,
    /// True if the device supports post-quantum handshakes, as Taupe does. Other devices refuse a
    /// `set` with their keys.
    pub supports_post_quantum: bool,
    /// True if the device supports endpoint names, as Taupe does. Other devices refuse a `set` with
    /// them.
    pub supports_endpoint_names: bool,
    /// True if the device sends an empty packet on request, as Taupe does.
    pub supports_keepalive_now: bool,
}

impl Device {
    /// Creates an empty state.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            public_key: None,
            listen_port: 0,
            fwmark: 0,
            counters: Vec::new(),
            status: DeviceStatus {
                private_key: None,
                pq_private_key: None,
                peers: Vec::new(),
            },
            supports_post_quantum: false,
            supports_endpoint_names: false,
            supports_keepalive_now: false,
        }
    }
}

/// Adds a counter. Ignores what a later version may send: other words, more counters.
fn add_counter(counters: &mut Vec<Counter>, text: &str) {
    let Some(counter) = Counter::parse(text) else {
        return;
    };
    let is_known = counters
        .iter()
        .any(|it| (&it.group, &it.name) == (&counter.group, &counter.name));
    if !is_known && counters.len() < MAX_COUNTERS {
        counters.push(counter);
    }
}

/// Counters that a client accepts in an answer, and the length of their words in bytes.
const MAX_COUNTERS: usize = 256;
const MAX_WORD: usize = 64;

/// A counter of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// The group: letters, digits and `-`.
    pub group: Cow<'static, str>,
    /// The name within the group: letters, digits and `-`.
    pub name: Cow<'static, str>,
    /// The number of events since the device was started.
    pub count: u64,
}

impl Counter {
    fn parse(text: &str) -> Option<Self> {
        let is_word = |word: &str| {
            (1..=MAX_WORD).contains(&word.len())
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let mut words = text.split(' ');
        let (group, name, count) = (words.next()?, words.next()?, words.next()?);
        (is_word(group) && is_word(name) && words.next().is_none()).then_some(())?;
        Some(Self {
            group: group.to_owned().into(),
            name: name.to_owned().into(),
            count: decimal(count)?,
        })
    }
}

/// Adds a peer with this key and default values.
///
/// Reallocation would leave copies of preshared keys in freed memory. So growing clones them, and
/// drops the old ones in place, which zeroises them.
pub fn push_peer(peers: &mut Vec<PeerStatus>, public_key: PublicKey) {
    if peers.len() == peers.capacity() {
        let mut grown = Vec::with_capacity((peers.len() * 2).max(4));
        grown.extend(peers.iter_mut().map(|peer| PeerStatus {
            preshared_key: peer.preshared_key.clone(),
            pq_public_key: peer.pq_public_key.take(),
            endpoint_name: peer.endpoint_name.take(),
            allowed_ips: mem::take(&mut peer.allowed_ips),
            ..*peer
        }));
        *peers = grown;
    }
    peers.push(PeerStatus {
        public_key,
        preshared_key: PresharedKey::NONE,
        pq_public_key: None,
        post_quantum: None,
        pq_pinned: false,
        session: None,
        lanes: None,
        endpoint: None,
        endpoint_name: None,
        latest_handshake: None,
        unanswered: None,
        tx_bytes: 0,
        rx_bytes: 0,
        persistent_keepalive: 0,
        allowed_ips: Vec::new(),
    });
}

/// Reason why an answer is not a success.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AnswerError {
    /// The answer is truncated, or a line is malformed. `wg` reports EPROTO.
    #[error("the answer is truncated or malformed")]
    Malformed,
    /// The device reports an error.
    #[error("the device answered with error {errno}")]
    Refused {
        /// The error number as `wg` reads it. Positive, unless the device sends the wrong sign.
        errno: i32,
        /// The reason as text. Only Taupe sends it.
        reason: Option<String>,
    },
}

/// Incremental parser of the answer to a `get`.
///
/// As `wg` does, it ignores lines with an unknown key, and rejects the answer if a known key has a
/// malformed value.
pub struct GetAnswer<'a> {
    lines: Lines,
    end: AnswerEnd,
    scopes: ScopeLookup<'a>,
    device: Device,
    handshake: (u64, u32),
}

impl<'a> GetAnswer<'a> {
    /// Creates a parser for the state of the device called `name`.
    #[must_use]
    pub fn new(name: &str, scopes: ScopeLookup<'a>) -> Self {
        Self {
            lines: Lines::new(),
            end: AnswerEnd::default(),
            scopes,
            device: Device::new(name),
            handshake: (0, 0),
        }
    }

    /// Parses more of the answer. Returns `true` once it is complete. `bytes` contain secrets:
    /// their owner must zeroise them.
    ///
    /// # Errors
    /// [`AnswerError::Malformed`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, AnswerError> {
        let Self {
            lines,
            end,
            scopes,
            device,
            handshake,
        } = self;
        lines.push(bytes, |key, value| {
            if key == "errno" {
                // Digits only: `wg` accepts no sign here.
                end.errno = Some(decimal(value)?);
                Some(())
            } else if key == "error" {
                end.reason(value);
                Some(())
            } else {
                parse_line(device, handshake, *scopes, key, value)
            }
        })
    }

    /// Returns the device. The answer must be complete.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn finish(self) -> Result<Device, AnswerError> {
        match self.end.errno {
            Some(0) if self.lines.ended => Ok(self.device),
            Some(errno) if self.lines.ended => Err(self.end.refused(errno)),
            _ => Err(AnswerError::Malformed),
        }
    }
}

/// Incremental parser of the answer to a `set`.
pub struct SetAnswer {
    lines: Lines,
    end: AnswerEnd,
}

impl SetAnswer {
    /// Creates a parser at the beginning of an answer.
    #[must_use]
    pub fn new() -> Self {
        Self {
            lines: Lines::new(),
            end: AnswerEnd::default(),
        }
    }

    /// Parses more of the answer. Returns `true` once it is complete.
    ///
    /// # Errors
    /// [`AnswerError::Malformed`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, AnswerError> {
        let Self { lines, end } = self;
        lines.push(bytes, |key, value| {
            match key {
                "errno" => end.errno = Some(value.parse().ok()?),
                "error" => end.reason(value),
                _ => {}
            }
            Some(())
        })
    }

    /// Returns the device's result. The answer must be complete.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn finish(self) -> Result<(), AnswerError> {
        match self.end.errno {
            Some(0) if self.lines.ended => Ok(()),
            // After a `set` the number is negative when the device sends the right sign.
            Some(errno) if self.lines.ended => Err(self.end.refused(errno.saturating_neg())),
            _ => Err(AnswerError::Malformed),
        }
    }
}

impl Default for SetAnswer {
    fn default() -> Self {
        Self::new()
    }
}

/// The end of an answer.
#[derive(Default)]
struct AnswerEnd {
    errno: Option<i32>,
    reason: Option<String>,
}

impl AnswerEnd {
    /// Stores the reason without control characters, because it is printed to a terminal.
    fn reason(&mut self, text: &str) {
        self.reason = Some(text.chars().filter(|c| !c.is_control()).collect());
    }

    fn refused(self, errno: i32) -> AnswerError {
        AnswerError::Refused {
            errno,
            reason: self.reason,
        }
    }
}

/// Parses a line about the device or its last peer. Returns `None` if it is malformed.
fn parse_line(
    device: &mut Device,
    handshake: &mut (u64, u32),
    scopes: ScopeLookup<'_>,
    key: &str,
    value: &str,
) -> Option<()> {
    let peers = &mut device.status.peers;
    if key == "public_key" {
        let key = Encoding::Hex.public_key(value).ok()?;
        // A peer takes more memory here than in the answer.
        if peers.len() >= MAX_PEERS {
            return None;
        }
        push_peer(peers, key);
        *handshake = (0, 0);
        return Some(());
    }
    let Some(peer) = peers.last_mut() else {
        match key {
            "private_key" => device.status.private_key = Encoding::Hex.private_key(value).ok()?,
            "pq_private_key" => {
                device.status.pq_private_key = Encoding::Hex.pq_private_key(value).ok()?;
            }
            "listen_port" => device.listen_port = decimal(value)?,
            "fwmark" => device.fwmark = decimal(value)?,
            "counter" => add_counter(&mut device.counters, value),
            "features" => {
                let has = |feature| value.split(' ').any(|word| word == feature);
                device.supports_endpoint_names = has("endpoint_name");
                device.supports_keepalive_now = has("keepalive_now");
                device.supports_post_quantum = has("post_quantum");
            }
            _ => {}
        }
        return Some(());
    };
    match key {
        "preshared_key" => peer.preshared_key = Encoding::Hex.preshared_key(value).ok()?,
        "endpoint" => peer.endpoint = Some(endpoint(value, scopes).ok()?),
        "endpoint_name" => peer.endpoint_name = endpoint_name(value).ok()?,
        "pq_public_key" => {
            peer.pq_public_key = Some(Encoding::Hex.pq_public_key(value).ok()?);
        }
        "post_quantum" => peer.post_quantum = Some(post_quantum(value).ok()?),
        "pq_latched" => peer.pq_pinned = value == "true",
        "session" => peer.session = Some(session(value)?),
        "lanes" => peer.lanes = Some(lanes(value)?),
        "interleaved" => {
            if let Some(lanes) = &mut peer.lanes {
                lanes.interleaved = value == "true";
            }
        }
        "last_handshake_time_sec" => {
            handshake.0 = decimal(value).filter(|seconds| i64::try_from(*seconds).is_ok())?;
            peer.latest_handshake = since_epoch(*handshake);
        }
        "last_handshake_time_nsec" => {
            let nanoseconds: u64 = decimal(value)?;
            handshake.1 = u32::try_from(nanoseconds).unwrap_or(u32::MAX);
            peer.latest_handshake = since_epoch(*handshake);
        }
        "unanswered" => {
            let (initiations, since) = value.split_once(' ')?;
            peer.unanswered = Some(Unanswered {
                initiations: decimal(initiations)?,
                since: Instant(decimal(since)?),
            });
        }
        "rx_bytes" => peer.rx_bytes = decimal(value)?,
        "tx_bytes" => peer.tx_bytes = decimal(value)?,
        "persistent_keepalive_interval" => peer.persistent_keepalive = decimal(value)?,
        "allowed_ip" => {
            let with_length = value.contains('/').then_some(value)?;
            peer.allowed_ips.push(prefix::parse(with_length).ok()?);
        }
        _ => {}
    }
    Some(())
}

/// Parses a session: its suite and creation time.
fn session(text: &str) -> Option<SessionStatus> {
    let (name, born) = text.split_once(' ')?;
    let suite = match name {
        SessionStatus::ORDINARY => None,
        name => Some(Suite::ALL.into_iter().find(|suite| suite.name() == name)?),
    };
    let born = Instant(decimal(born)?);
    Some(SessionStatus { suite, born })
}

/// Parses the lanes of a session: the number over which it is received, and the number of the
/// peer's.
fn lanes(text: &str) -> Option<LaneStatus> {
    let (receiving, remote) = text.split_once(' ')?;
    Some(LaneStatus {
        receiving: Lanes::new(decimal(receiving)?)?,
        remote: Lanes::new(decimal(remote)?)?,
        interleaved: false,
    })
}

/// Returns the time of a handshake since the Unix epoch, from seconds and nanoseconds. Zero means
/// that there was none.
#[must_use]
pub fn since_epoch((seconds, nanoseconds): (u64, u32)) -> Option<Duration> {
    let time = Duration::new(seconds, nanoseconds.min(999_999_999));
    (!time.is_zero()).then_some(time)
}

/// Splits a stream into lines of the form `key=value`, up to a blank line.
struct Lines {
    /// The beginning of an incomplete line. Its capacity is never exceeded: reallocation would
    /// leave copies of secrets in freed memory.
    partial: Zeroizing<Vec<u8>>,
    ended: bool,
}

impl Lines {
    fn new() -> Self {
        Self {
            partial: Zeroizing::new(Vec::with_capacity(MAX_LINE)),
            ended: false,
        }
    }

    /// Passes each line to `take`, which returns `None` if the line is malformed.
    fn push(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(&str, &str) -> Option<()>,
    ) -> Result<bool, AnswerError> {
        while !self.ended {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                self.buffer(bytes)?;
                return Ok(false);
            };
            let (piece, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            self.buffer(piece)?;
            let line = str::from_utf8(&self.partial).map_err(|_| AnswerError::Malformed)?;
            self.ended = line.is_empty();
            if !self.ended {
                let (key, value) = line.split_once('=').ok_or(AnswerError::Malformed)?;
                take(key, value).ok_or(AnswerError::Malformed)?;
            }
            self.partial.as_mut_slice().zeroize();
            self.partial.clear();
        }
        Ok(true)
    }

    fn buffer(&mut self, piece: &[u8]) -> Result<(), AnswerError> {
        if piece.len() > MAX_LINE - self.partial.len() {
            return Err(AnswerError::Malformed);
        }
        self.partial.extend_from_slice(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

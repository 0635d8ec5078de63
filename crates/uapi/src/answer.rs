//! Answers to `get` and `set`, as a client reads them.

use core::mem;
use core::str::FromStr;
use core::time::Duration;
use taupe_protocol::key::{PresharedKey, PublicKey};
use taupe_protocol::time::Instant;
use taupe_protocol::update::{DeviceStatus, PeerStatus, SessionStatus, Suite, Unanswered};
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use super::set::{endpoint, endpoint_name, post_quantum};
use super::{MAX_LINE, ScopeLookup};
use crate::key::Encoding;
use crate::prefix;

/// Everything that a device tells of itself.
pub struct Device {
    /// Its name, which is the interface's.
    pub name: String,
    /// Its public key, if it has a private one. The UAPI does not carry it:
    /// whoever can compute it fills it in.
    pub public_key: Option<PublicKey>,
    /// The UDP port; 0 when it has none yet.
    pub listen_port: u16,
    /// The mark of the packets that carry the tunnel; 0 is off.
    pub fwmark: u32,
    /// Its private key and its peers.
    pub status: DeviceStatus,
    /// Whether it has hybrid handshakes, as a Taupe does; others refuse a `set` that has
    /// anything of them.
    pub takes_post_quantum: bool,
    /// Whether it takes the names of endpoints, as a Taupe does; others refuse
    /// a `set` that has them.
    pub takes_endpoint_names: bool,
}

impl Device {
    /// A device that has nothing yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            public_key: None,
            listen_port: 0,
            fwmark: 0,
            status: DeviceStatus {
                private_key: None,
                pq_private_key: None,
                peers: Vec::new(),
            },
            takes_post_quantum: false,
            takes_endpoint_names: false,
        }
    }
}

/// Adds a peer of which only the key is known yet.
///
/// A plain reallocation would leave preshared keys behind in freed memory, so
/// growing copies them and drops, which zeroises, the old ones in place.
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
        pq_latched: false,
        session: None,
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

/// Why an answer is not what was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AnswerError {
    /// It is cut short, or a line is not what it has to be. `wg` calls that
    /// EPROTO.
    #[error("the answer is cut short or malformed")]
    Malformed,
    /// The device says that it failed.
    #[error("the device answers with error {errno}")]
    Refused {
        /// The error number as `wg` takes it: positive, unless the device has
        /// the sign wrong.
        errno: i32,
        /// Why in words. Only Taupe says it.
        reason: Option<String>,
    },
}

/// Reads the answer to a `get` as it comes.
///
/// As `wg` does, it ignores lines with an unknown key, and refuses the whole
/// answer for a malformed value of a known one.
pub struct GetAnswer {
    lines: Lines,
    ending: Ending,
    scopes: ScopeLookup,
    device: Device,
    handshake: (u64, u32),
}

impl GetAnswer {
    /// A reader of what the device called `name` says of itself.
    #[must_use]
    pub fn new(name: &str, scopes: ScopeLookup) -> Self {
        Self {
            lines: Lines::new(),
            ending: Ending::default(),
            scopes,
            device: Device::new(name),
            handshake: (0, 0),
        }
    }

    /// Takes more of the answer; `true` when it is complete. `bytes` hold
    /// secrets: zeroising them is up to their owner.
    ///
    /// # Errors
    /// [`AnswerError::Malformed`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, AnswerError> {
        let Self {
            lines,
            ending,
            scopes,
            device,
            handshake,
        } = self;
        lines.push(bytes, |key, value| {
            if key == "errno" {
                // Digits only: `wg` takes no sign here.
                ending.errno = Some(number(value)?);
                Some(())
            } else if key == "error" {
                ending.reason(value);
                Some(())
            } else {
                take(device, handshake, *scopes, key, value)
            }
        })
    }

    /// The device, once the answer is complete.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn finish(self) -> Result<Device, AnswerError> {
        match self.ending.errno {
            Some(0) if self.lines.ended => Ok(self.device),
            Some(errno) if self.lines.ended => Err(self.ending.refused(errno)),
            _ => Err(AnswerError::Malformed),
        }
    }
}

/// Reads the answer to a `set` as it comes.
pub struct SetAnswer {
    lines: Lines,
    ending: Ending,
}

impl SetAnswer {
    /// A reader at the beginning of an answer.
    #[must_use]
    pub fn new() -> Self {
        Self {
            lines: Lines::new(),
            ending: Ending::default(),
        }
    }

    /// Takes more of the answer; `true` when it is complete.
    ///
    /// # Errors
    /// [`AnswerError::Malformed`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, AnswerError> {
        let Self { lines, ending } = self;
        lines.push(bytes, |key, value| {
            match key {
                "errno" => ending.errno = Some(value.parse().ok()?),
                "error" => ending.reason(value),
                _ => {}
            }
            Some(())
        })
    }

    /// What the device says, once the answer is complete.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn finish(self) -> Result<(), AnswerError> {
        match self.ending.errno {
            Some(0) if self.lines.ended => Ok(()),
            // Here the number is negative when the sign is right.
            Some(errno) if self.lines.ended => Err(self.ending.refused(errno.saturating_neg())),
            _ => Err(AnswerError::Malformed),
        }
    }
}

impl Default for SetAnswer {
    fn default() -> Self {
        Self::new()
    }
}

/// How an answer ends.
#[derive(Default)]
struct Ending {
    errno: Option<i32>,
    reason: Option<String>,
}

impl Ending {
    /// The reason goes to a terminal.
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

/// One line about the device or its last peer; `None` when it is malformed.
fn take(
    device: &mut Device,
    handshake: &mut (u64, u32),
    scopes: ScopeLookup,
    key: &str,
    value: &str,
) -> Option<()> {
    let peers = &mut device.status.peers;
    if key == "public_key" {
        push_peer(peers, Encoding::Hex.public_key(value).ok()?);
        *handshake = (0, 0);
        return Some(());
    }
    let Some(peer) = peers.last_mut() else {
        match key {
            "private_key" => device.status.private_key = Encoding::Hex.private_key(value).ok()?,
            "pq_private_key" => {
                device.status.pq_private_key = Encoding::Hex.pq_private_key(value).ok()?;
            }
            "listen_port" => device.listen_port = number(value)?,
            "fwmark" => device.fwmark = number(value)?,
            "features" => {
                let has = |feature| value.split(' ').any(|word| word == feature);
                device.takes_endpoint_names = has("endpoint_name");
                device.takes_post_quantum = has("post_quantum");
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
        "pq_latched" => peer.pq_latched = value == "true",
        "session" => peer.session = Some(session(value)?),
        "last_handshake_time_sec" => {
            handshake.0 = number(value).filter(|seconds| i64::try_from(*seconds).is_ok())?;
            peer.latest_handshake = since_epoch(*handshake);
        }
        "last_handshake_time_nsec" => {
            let nanoseconds: u64 = number(value)?;
            handshake.1 = u32::try_from(nanoseconds).unwrap_or(u32::MAX);
            peer.latest_handshake = since_epoch(*handshake);
        }
        "unanswered" => {
            let (initiations, since) = value.split_once(' ')?;
            peer.unanswered = Some(Unanswered {
                initiations: number(initiations)?,
                since: Instant(number(since)?),
            });
        }
        "rx_bytes" => peer.rx_bytes = number(value)?,
        "tx_bytes" => peer.tx_bytes = number(value)?,
        "persistent_keepalive_interval" => peer.persistent_keepalive = number(value)?,
        "allowed_ip" => {
            let with_length = value.contains('/').then_some(value)?;
            peer.allowed_ips.push(prefix::parse(with_length).ok()?);
        }
        _ => {}
    }
    Some(())
}

/// A session's name and when it was born.
fn session(text: &str) -> Option<SessionStatus> {
    let (name, born) = text.split_once(' ')?;
    let suite = match name {
        SessionStatus::ORDINARY => None,
        name => Some(Suite::ALL.into_iter().find(|suite| suite.name() == name)?),
    };
    let born = Instant(number(born)?);
    Some(SessionStatus { suite, born })
}

/// When a handshake was, by seconds and nanoseconds since the Unix epoch; zero
/// is never.
#[must_use]
pub fn since_epoch((seconds, nanoseconds): (u64, u32)) -> Option<Duration> {
    let time = Duration::new(seconds, nanoseconds.min(999_999_999));
    (!time.is_zero()).then_some(time)
}

/// A decimal number without sign, which `FromStr` would take.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Cuts a stream into lines of the form `key=value`, up to a blank one.
struct Lines {
    /// The beginning of a line whose end has not come yet. Its capacity is
    /// never exceeded, so that no secret stays behind in freed memory.
    held: Zeroizing<Vec<u8>>,
    ended: bool,
}

impl Lines {
    fn new() -> Self {
        Self {
            held: Zeroizing::new(Vec::with_capacity(MAX_LINE)),
            ended: false,
        }
    }

    /// Hands each line to `take`, which says whether it is well-formed.
    fn push(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(&str, &str) -> Option<()>,
    ) -> Result<bool, AnswerError> {
        while !self.ended {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                self.hold(bytes)?;
                return Ok(false);
            };
            let (piece, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            self.hold(piece)?;
            let line = str::from_utf8(&self.held).map_err(|_| AnswerError::Malformed)?;
            self.ended = line.is_empty();
            if !self.ended {
                let (key, value) = line.split_once('=').ok_or(AnswerError::Malformed)?;
                take(key, value).ok_or(AnswerError::Malformed)?;
            }
            self.held.as_mut_slice().zeroize();
            self.held.clear();
        }
        Ok(true)
    }

    fn hold(&mut self, piece: &[u8]) -> Result<(), AnswerError> {
        if piece.len() > MAX_LINE - self.held.len() {
            return Err(AnswerError::Malformed);
        }
        self.held.extend_from_slice(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

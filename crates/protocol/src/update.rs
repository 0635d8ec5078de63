//! What can be asked of a running device, and what it tells of itself.
//!
//! A [`DeviceUpdate`] is one transaction of the UAPI's `set`, already parsed
//! and checked: applying it cannot fail.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use core::time::Duration;

use crate::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use crate::limits::REJECT_AFTER_TIME;
pub use crate::suite::Suite;
use crate::time::{Instant, Tai64N};

/// An address prefix: the allowed IPs' unit. Host bits are always zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The prefix of `length` bits that holds `address`; host bits are
    /// cleared. `None` when `length` exceeds 32 (IPv4) or 128 (IPv6).
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(a) => {
                let host = u32::MAX.checked_shr(u32::from(length)).unwrap_or(0);
                (length <= 32).then(|| IpAddr::V4((u32::from(a) & !host).into()))
            }
            IpAddr::V6(a) => {
                let host = u128::MAX.checked_shr(u32::from(length)).unwrap_or(0);
                (length <= 128).then(|| IpAddr::V6((u128::from(a) & !host).into()))
            }
        }?;
        Some(Self { address, length })
    }

    /// A prefix of at most the address's bits, whose host bits are zero.
    pub(crate) fn whole(address: IpAddr, length: u8) -> Self {
        Self { address, length }
    }

    /// The first address of the prefix.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many leading bits are fixed.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }
}

/// The prefix of that one address: /32 or /128.
impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self::whole(address, if address.is_ipv4() { 32 } else { 128 })
    }
}

/// A host's name and a UDP port: where a peer's address is asked for again when
/// it does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointName {
    host: Box<str>,
    port: NonZeroU16,
}

impl EndpointName {
    /// The longest host name, in bytes (RFC 1035 §2.3.4, as text).
    pub const MAX_HOST: usize = 253;

    /// The name `host` and a UDP port. `None` when the port is 0, or the host
    /// is empty, longer than [`Self::MAX_HOST`], an IP address, or has blanks,
    /// control characters, colons or brackets in it.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Option<Self> {
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | '[' | ']');
        let length = 1..=Self::MAX_HOST;
        let named =
            length.contains(&host.len()) && !host.contains(odd) && host.parse::<IpAddr>().is_err();
        Some(Self {
            port: NonZeroU16::new(port)?,
            host: named.then(|| host.into())?,
        })
    }

    /// The host's name.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The UDP port, never 0.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.get()
    }
}

/// `HOST:PORT`.
impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// One `allowed_ip=` line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllowedIpChange {
    /// Gives the prefix to this peer, taking it from any other.
    Add(Prefix),
    /// Takes the prefix from this peer if it has it.
    Remove(Prefix),
}

/// Whether handshakes with a peer must withstand quantum computers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostQuantum {
    /// Only ordinary handshakes.
    Off,
    /// Hybrid ones; ordinary ones while the peer has never answered a hybrid one.
    Prefer,
    /// Only hybrid ones.
    Require,
}

impl PostQuantum {
    /// Every policy, the strictest last.
    pub const ALL: [Self; 3] = [Self::Off, Self::Prefer, Self::Require];

    /// As files and the UAPI have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Prefer => "prefer",
            Self::Require => "require",
        }
    }
}

/// A change of one peer.
pub struct PeerUpdate {
    /// Which peer.
    pub public_key: PublicKey,
    /// Removes the peer; everything else is ignored.
    pub remove: bool,
    /// Changes the peer only if it is there already.
    pub update_only: bool,
    /// Sets the preshared key ([`PresharedKey::NONE`] clears it).
    pub preshared_key: Option<PresharedKey>,
    /// Sets the peer's static ML-KEM key; `Some(None)` takes it away.
    pub pq_public_key: Option<Option<PqPublicKey>>,
    /// Sets which handshakes there are with the peer; `Some(None)`, and never to have said,
    /// is [`PostQuantum::Require`] with an ML-KEM key and [`PostQuantum::Off`] without.
    /// Off also forgets that [`PostQuantum::Prefer`] has become as strict as
    /// [`PostQuantum::Require`].
    pub post_quantum: Option<Option<PostQuantum>>,
    /// Remembers that the peer has answered hybrid handshakes before: from then on
    /// [`PostQuantum::Prefer`] is as strict as [`PostQuantum::Require`].
    pub pq_latched: bool,
    /// Sets where the peer is reached. Without `endpoint_name` it also forgets
    /// the name that the endpoint had.
    pub endpoint: Option<SocketAddr>,
    /// Sets the name by which the endpoint is found again when the peer does
    /// not answer; `Some(None)` forgets it.
    pub endpoint_name: Option<Option<EndpointName>>,
    /// Sets the persistent keepalive in seconds; 0 is off.
    pub persistent_keepalive: Option<u16>,
    /// Forgets the peer's allowed IPs before `allowed_ips` is applied.
    pub replace_allowed_ips: bool,
    /// Changes of the allowed IPs, in order.
    pub allowed_ips: Vec<AllowedIpChange>,
}

impl PeerUpdate {
    /// An update of `public_key` that changes nothing yet.
    #[must_use]
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            preshared_key: None,
            pq_public_key: None,
            post_quantum: None,
            pq_latched: false,
            endpoint: None,
            endpoint_name: None,
            persistent_keepalive: None,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }
}

/// A new private key for the device.
pub struct PrivateKeyUpdate {
    /// The key; `None` removes it.
    pub key: Option<PrivateKey>,
    /// The greatest handshake timestamp that may already have been sent with this
    /// key ([`Tai64N::ZERO`] when nothing is known): later timestamps are greater.
    pub timestamp_floor: Tai64N,
}

impl PrivateKeyUpdate {
    /// A key with which no timestamp has been sent yet, or none that the wall clock has not passed:
    /// [`Self::timestamp_floor`] is [`Tai64N::ZERO`].
    #[must_use]
    pub fn new(key: PrivateKey) -> Self {
        Self {
            key: Some(key),
            timestamp_floor: Tai64N::ZERO,
        }
    }
}

/// One transaction: everything in it is applied, in this order.
#[derive(Default)]
pub struct DeviceUpdate {
    /// Changes the device's private key.
    pub private_key: Option<PrivateKeyUpdate>,
    /// Changes the seed of the device's ML-KEM keys; `Some(None)` removes it.
    pub pq_private_key: Option<Option<PqPrivateKey>>,
    /// Removes every peer before `peers` is applied.
    pub replace_peers: bool,
    /// Changes of peers, in order.
    pub peers: Vec<PeerUpdate>,
}

/// What a device tells of itself (the UAPI's `get`).
pub struct DeviceStatus {
    /// The private key, if set.
    pub private_key: Option<PrivateKey>,
    /// The seed of its ML-KEM keys, if set.
    pub pq_private_key: Option<PqPrivateKey>,
    /// The peers, in the order in which they were added.
    pub peers: Vec<PeerStatus>,
}

/// Handshake initiations to a peer that is silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unanswered {
    /// How many there have been.
    pub initiations: u32,
    /// When the first was sent.
    pub since: Instant,
}

/// A session with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionStatus {
    /// The suite of the hybrid handshake it comes from; `None` for an ordinary one.
    pub suite: Option<Suite>,
    /// When its keys were derived.
    pub born: Instant,
}

impl SessionStatus {
    /// What it is called where there is no suite's name.
    pub const ORDINARY: &str = "ordinary";

    /// Whether it can still be used (Reject-After-Time).
    #[must_use]
    pub fn is_alive(&self, now: Instant) -> bool {
        now.since(self.born) < REJECT_AFTER_TIME
    }

    /// The suite's name, or [`Self::ORDINARY`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.suite.map_or(Self::ORDINARY, Suite::name)
    }
}

/// What a device tells of one peer.
pub struct PeerStatus {
    /// The peer's public key.
    pub public_key: PublicKey,
    /// Its preshared key ([`PresharedKey::NONE`] when none is set).
    pub preshared_key: PresharedKey,
    /// Its static ML-KEM key.
    pub pq_public_key: Option<PqPublicKey>,
    /// Which handshakes there are with it, as it was said, if it was.
    pub post_quantum: Option<PostQuantum>,
    /// Whether [`PostQuantum::Prefer`] has become as strict as [`PostQuantum::Require`].
    pub pq_latched: bool,
    /// The session that it is sent to with, also one that has expired.
    pub session: Option<SessionStatus>,
    /// Where it is reached now.
    pub endpoint: Option<SocketAddr>,
    /// The name by which the endpoint is found again.
    pub endpoint_name: Option<EndpointName>,
    /// When the latest handshake completed, on the wall clock since the Unix
    /// epoch.
    pub latest_handshake: Option<Duration>,
    /// Handshake initiations since anything was heard of the peer, unless there have been
    /// none or the last of them was given up.
    pub unanswered: Option<Unanswered>,
    /// Bytes of WireGuard messages sent to the peer.
    pub tx_bytes: u64,
    /// Bytes of authenticated WireGuard messages received from the peer.
    pub rx_bytes: u64,
    /// Persistent keepalive in seconds; 0 is off.
    pub persistent_keepalive: u16,
    /// The prefixes that are the peer's.
    pub allowed_ips: Vec<Prefix>,
}

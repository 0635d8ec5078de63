//! Configuration changes and status of a running device.
//!
//! A [`DeviceUpdate`] is one transaction of the UAPI's `set`, already parsed and checked.
//! Applying it fails only if the device would have too many peers.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use core::time::Duration;

use ipnet::IpNet;

use crate::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use crate::lanes::Lanes;
use crate::limits::REJECT_AFTER_TIME;
pub use crate::suite::Suite;
use crate::time::{Instant, Tai64N};

/// Host name and UDP port of an endpoint, looked up again when the peer does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointName {
    host: Box<str>,
    port: NonZeroU16,
}

impl EndpointName {
    /// The longest host name, in bytes (RFC 1035 §2.3.4, as text).
    pub const MAX_HOST: usize = 253;

    /// Returns the name of `host` and a UDP port. `None` if the port is 0, or if the host is
    /// empty, longer than [`Self::MAX_HOST`], an IP address, or contains white space, control
    /// characters, colons or brackets.
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

    /// Returns the host name.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the UDP port, never 0.
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

/// One `allowed_ip=` line. Host bits of the prefix are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllowedIpChange {
    /// Assigns the prefix to this peer and removes it from any other.
    Add(IpNet),
    /// Removes the prefix from this peer, if this peer has it.
    Remove(IpNet),
}

/// Policy for post-quantum handshakes with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostQuantum {
    /// Only ordinary handshakes.
    Off,
    /// Hybrid handshakes; ordinary ones as long as the peer has never answered a hybrid one.
    Prefer,
    /// Only hybrid handshakes.
    Require,
}

impl PostQuantum {
    /// Every policy, the strictest last.
    pub const ALL: [Self; 3] = [Self::Off, Self::Prefer, Self::Require];

    /// Returns the name used in files and the UAPI.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Prefer => "prefer",
            Self::Require => "require",
        }
    }
}

/// Change of one peer.
pub struct PeerUpdate {
    /// The peer.
    pub public_key: PublicKey,
    /// Removes the peer; all other fields are ignored.
    pub remove: bool,
    /// Changes the peer only if it exists.
    pub update_only: bool,
    /// Sets the preshared key ([`PresharedKey::NONE`] clears it).
    pub preshared_key: Option<PresharedKey>,
    /// Sets the peer's static ML-KEM key; `Some(None)` removes it.
    pub pq_public_key: Option<Option<PqPublicKey>>,
    /// Sets the policy for post-quantum handshakes. `Some(None)` restores the default, which also
    /// applies if no policy was ever set: [`PostQuantum::Require`] with an ML-KEM key,
    /// [`PostQuantum::Off`] without. [`PostQuantum::Off`] also clears the effect of `pq_pinned`.
    pub post_quantum: Option<Option<PostQuantum>>,
    /// Set if the peer has answered hybrid handshakes before: [`PostQuantum::Prefer`] is then as
    /// strict as [`PostQuantum::Require`].
    pub pq_pinned: bool,
    /// Sets the peer's endpoint. Without `endpoint_name` it also removes the endpoint's name.
    pub endpoint: Option<SocketAddr>,
    /// Sets the name to look up when the peer does not answer; `Some(None)` removes it.
    pub endpoint_name: Option<Option<EndpointName>>,
    /// Sets the persistent keepalive in seconds; 0 is off.
    pub persistent_keepalive: Option<u16>,
    /// Sends an empty packet at once, if the device is up. Without a session it begins a handshake.
    pub keepalive_now: bool,
    /// Removes all of the peer's allowed IPs before `allowed_ips` is applied.
    pub replace_allowed_ips: bool,
    /// Changes of the allowed IPs, in order.
    pub allowed_ips: Vec<AllowedIpChange>,
}

impl PeerUpdate {
    /// Returns an update of `public_key` that changes nothing.
    #[must_use]
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            preshared_key: None,
            pq_public_key: None,
            post_quantum: None,
            pq_pinned: false,
            endpoint: None,
            endpoint_name: None,
            persistent_keepalive: None,
            keepalive_now: false,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }
}

/// A new private key for the device.
pub struct PrivateKeyUpdate {
    /// The key; `None` removes it.
    pub key: Option<PrivateKey>,
    /// The greatest handshake timestamp that may already have been sent with this key
    /// ([`Tai64N::ZERO`] if unknown). The device sends only greater ones.
    pub timestamp_floor: Tai64N,
}

impl PrivateKeyUpdate {
    /// An update to a key with which no timestamp later than the wall clock has been sent:
    /// [`Self::timestamp_floor`] is [`Tai64N::ZERO`].
    #[must_use]
    pub fn new(key: PrivateKey) -> Self {
        Self {
            key: Some(key),
            timestamp_floor: Tai64N::ZERO,
        }
    }
}

/// One transaction of configuration. Its fields are applied in this order.
#[derive(Default)]
pub struct DeviceUpdate {
    /// Change of the device's private key.
    pub private_key: Option<PrivateKeyUpdate>,
    /// Change of the seed of the device's ML-KEM keys; `Some(None)` removes it.
    pub pq_private_key: Option<Option<PqPrivateKey>>,
    /// Removes every peer before `peers` is applied.
    pub replace_peers: bool,
    /// Changes of peers, in order.
    pub peers: Vec<PeerUpdate>,
}

/// Configuration and state of a device (the UAPI's `get`).
pub struct DeviceStatus {
    /// The private key, if set.
    pub private_key: Option<PrivateKey>,
    /// The seed of the device's ML-KEM keys, if set.
    pub pq_private_key: Option<PqPrivateKey>,
    /// The peers, in the order in which they were added.
    pub peers: Vec<PeerStatus>,
}

/// Unanswered handshake initiations to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unanswered {
    /// Number of initiations.
    pub initiations: u32,
    /// Time of the first.
    pub since: Instant,
}

/// A session with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionStatus {
    /// The suite of the hybrid handshake that made the session; `None` for an ordinary one.
    pub suite: Option<Suite>,
    /// Time at which the keys were derived.
    pub born: Instant,
}

impl SessionStatus {
    /// Name for a session of an ordinary handshake.
    pub const ORDINARY: &str = "ordinary";

    /// Checks whether the session can still be used (Reject-After-Time).
    #[must_use]
    pub fn is_alive(&self, now: Instant) -> bool {
        now.since(self.born) < REJECT_AFTER_TIME
    }

    /// Returns the suite's name, or [`Self::ORDINARY`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.suite.map_or(Self::ORDINARY, Suite::name)
    }
}

/// Lanes of the session with a peer, on a device with several lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneStatus {
    /// Number of lanes over which this side receives the session.
    pub receiving: Lanes,
    /// Number of lanes of the peer's device; [`Lanes::One`] unless the device has stated more.
    pub remote: Lanes,
    /// True if many of the peer's messages have arrived on wrong lanes. Its next
    /// sessions are then received on one lane.
    pub interleaved: bool,
}

/// Configuration and state of a peer.
pub struct PeerStatus {
    /// The peer's public key.
    pub public_key: PublicKey,
    /// The preshared key ([`PresharedKey::NONE`] if none is set).
    pub preshared_key: PresharedKey,
    /// The peer's static ML-KEM key.
    pub pq_public_key: Option<PqPublicKey>,
    /// The configured policy for post-quantum handshakes; `None` for the default.
    pub post_quantum: Option<PostQuantum>,
    /// True if [`PostQuantum::Prefer`] has become as strict as [`PostQuantum::Require`].
    pub pq_pinned: bool,
    /// The session used for sending, even if it has expired.
    pub session: Option<SessionStatus>,
    /// Lanes of that session; `None` if there is no session, or if this device has one lane.
    pub lanes: Option<LaneStatus>,
    /// The current endpoint.
    pub endpoint: Option<SocketAddr>,
    /// The name to look up when the peer does not answer.
    pub endpoint_name: Option<EndpointName>,
    /// Time of the latest completed handshake, on the wall clock since the Unix epoch.
    pub latest_handshake: Option<Duration>,
    /// Handshake initiations since the last authenticated message from the peer. `None` if there
    /// were none, or if the handshake was given up.
    pub unanswered: Option<Unanswered>,
    /// Bytes of WireGuard messages sent to the peer.
    pub tx_bytes: u64,
    /// Bytes of authenticated WireGuard messages received from the peer.
    pub rx_bytes: u64,
    /// Persistent keepalive in seconds; 0 is off.
    pub persistent_keepalive: u16,
    /// The peer's allowed IPs. Host bits are zero.
    pub allowed_ips: Vec<IpNet>,
}

//! The actions of a plan, and the classes by which they are counted and left out.

use super::{Agreed, Edge, Nanos, Quality};

/// A planned action. `edge` is an index into [`Episode::edges`](super::Episode::edges); `side` is 0
/// for its `a` and 1 for its `b`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields say it")]
pub enum Action {
    /// A pair begins to exchange packets.
    Flow {
        edge: usize,
        side: usize,
        pattern: Pattern,
        interval: Nanos,
        span: Nanos,
    },
    /// A pair that can exchange packets must do so within a bounded time.
    Probe { edge: usize },
    /// More packets in one session than its replay window holds, followed by replays of old ones.
    Bulk {
        edge: usize,
        side: usize,
        packets: u16,
    },
    /// A link gets worse for a time.
    Impair {
        edge: usize,
        quality: Quality,
        span: Nanos,
    },
    /// One or both directions are blocked.
    Partition {
        edge: usize,
        sides: [bool; 2],
        span: Nanos,
    },
    /// A NAT gives the host another port.
    Rebind { host: usize },
    /// The host gets another address.
    Roam { host: usize },
    /// The host loses everything but its configuration, and the timestamp file if it is kept.
    Crash {
        host: usize,
        keep_timestamps: bool,
        keep_endpoints: bool,
        span: Nanos,
        wall_jump: i64,
    },
    /// The program ends regularly and is started again.
    Restart { host: usize, span: Nanos },
    /// The wall clock jumps, by nanoseconds.
    ClockJump { host: usize, by: i64 },
    /// The host is suspended; its boot clock goes on.
    Suspend { host: usize, span: Nanos },
    /// The interface goes down and up.
    Down { host: usize, span: Nanos },
    /// One side removes the other and adds it again.
    Remove {
        edge: usize,
        side: usize,
        span: Nanos,
    },
    /// Both sides change the preshared key, one after the other.
    Preshared {
        edge: usize,
        side: usize,
        gap: Nanos,
    },
    /// One side gets the other's endpoint.
    Endpoint { edge: usize, side: usize },
    /// One side's persistent keepalive is set.
    Keepalive {
        edge: usize,
        side: usize,
        seconds: u16,
    },
    /// The host gets another private key; its peers get the new key later.
    PrivateKey { host: usize, gap: Nanos },
    /// The host gets another seed of ML-KEM keys; its peers get the new key later.
    Seed { host: usize, gap: Nanos },
    /// Both sides change their settings for hybrid handshakes, one after the other.
    Hybrid {
        edge: usize,
        side: usize,
        agreed: Option<Agreed>,
        gap: Nanos,
    },
    /// The allowed IPs of one peer move to another for a time.
    MoveAllowed {
        host: usize,
        from: usize,
        to: usize,
        span: Nanos,
    },
    /// Handshakes arrive faster than the host processes them.
    Load { host: usize, span: Nanos },
    /// Hostile datagrams for a host.
    Attack {
        host: usize,
        kind: Hostile,
        count: u8,
    },
    /// For a time, hosts that send an initiation are attacked before the answer arrives.
    Ambush { span: Nanos },
}

impl Action {
    /// Returns its class.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Flow { .. } => Class::Flow,
            Self::Probe { .. } => Class::Probe,
            Self::Bulk { .. } => Class::Bulk,
            Self::Impair { .. } => Class::Impair,
            Self::Partition { .. } => Class::Partition,
            Self::Rebind { .. } => Class::Rebind,
            Self::Roam { .. } => Class::Roam,
            Self::Crash { .. } => Class::Crash,
            Self::Restart { .. } => Class::Restart,
            Self::ClockJump { .. } => Class::ClockJump,
            Self::Suspend { .. } => Class::Suspend,
            Self::Down { .. } => Class::Down,
            Self::Remove { .. } => Class::Remove,
            Self::Preshared { .. } => Class::Preshared,
            Self::Endpoint { .. } => Class::Endpoint,
            Self::Keepalive { .. } => Class::Keepalive,
            Self::PrivateKey { .. } => Class::PrivateKey,
            Self::Seed { .. } => Class::Seed,
            Self::Hybrid { .. } => Class::Hybrid,
            Self::MoveAllowed { .. } => Class::MoveAllowed,
            Self::Load { .. } => Class::Load,
            Self::Attack { .. } => Class::Attack,
            Self::Ambush { .. } => Class::Ambush,
        }
    }

    /// Returns the hosts it is about.
    #[must_use]
    pub fn hosts(&self, edges: &[Edge]) -> Vec<usize> {
        match *self {
            Self::Flow { edge, .. }
            | Self::Probe { edge }
            | Self::Bulk { edge, .. }
            | Self::Impair { edge, .. }
            | Self::Partition { edge, .. }
            | Self::Remove { edge, .. }
            | Self::Preshared { edge, .. }
            | Self::Endpoint { edge, .. }
            | Self::Hybrid { edge, .. }
            | Self::Keepalive { edge, .. } => vec![edges[edge].a, edges[edge].b],
            Self::Rebind { host }
            | Self::Roam { host }
            | Self::Crash { host, .. }
            | Self::Restart { host, .. }
            | Self::ClockJump { host, .. }
            | Self::Suspend { host, .. }
            | Self::Down { host, .. }
            | Self::PrivateKey { host, .. }
            | Self::Seed { host, .. }
            | Self::Load { host, .. }
            | Self::Attack { host, .. } => vec![host],
            Self::MoveAllowed { host, from, to, .. } => vec![host, from, to],
            Self::Ambush { .. } => Vec::new(),
        }
    }
}

/// Traffic pattern of a pair.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// Each packet is answered.
    Request,
    /// Packets in one direction; only keepalives come back.
    OneWay,
    /// Both sides send independently.
    Both,
    /// Many packets at once.
    Burst(u16),
}

/// Kinds of hostile datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hostile {
    /// Random bytes, some with the header of a real message.
    Noise,
    /// A datagram that the target has accepted before.
    Replay,
    /// A datagram that was sent to another host.
    Misdirect,
    /// One bit changed.
    BitFlip,
    /// Truncated, or with bytes added.
    Resize,
    /// The header of one packet with the body of another.
    Splice,
    /// A datagram that the target itself has sent.
    Reflect,
    /// An initiation with a valid mac1 and otherwise random content.
    ForgedInitiation,
    /// A response to a real initiation, with a valid mac1.
    ForgedResponse,
    /// A cookie reply to a real initiation.
    ForgedCookie,
    /// Data for a real session, with any counter.
    ForgedData,
    /// A replayed part of a hybrid message, from any address.
    ReplayPart,
    /// A part with the body of another handshake's part, with a valid mac1.
    MixParts,
    /// A changed part with a valid mac1.
    ForgedPart,
    /// A handshake by an attacker with all X25519 secrets and preshared keys of a peer.
    Impersonation,
}

impl Hostile {
    /// Kinds that need hybrid handshakes.
    pub const HYBRID: [Self; 4] = [
        Self::ReplayPart,
        Self::MixParts,
        Self::ForgedPart,
        Self::Impersonation,
    ];

    /// All other kinds.
    pub const ALL: [Self; 11] = [
        Self::Noise,
        Self::Replay,
        Self::Misdirect,
        Self::BitFlip,
        Self::Resize,
        Self::Splice,
        Self::Reflect,
        Self::ForgedInitiation,
        Self::ForgedResponse,
        Self::ForgedCookie,
        Self::ForgedData,
    ];
}

/// A class of events, for shrinking and counting.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "as Action")]
pub enum Class {
    Flow,
    Probe,
    Bulk,
    Impair,
    Partition,
    Rebind,
    Roam,
    Crash,
    Restart,
    ClockJump,
    Suspend,
    Down,
    Remove,
    Preshared,
    Endpoint,
    Keepalive,
    PrivateKey,
    Seed,
    Hybrid,
    MoveAllowed,
    Load,
    Attack,
    Ambush,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 23] = [
        Self::Flow,
        Self::Probe,
        Self::Bulk,
        Self::Impair,
        Self::Partition,
        Self::Rebind,
        Self::Roam,
        Self::Crash,
        Self::Restart,
        Self::ClockJump,
        Self::Suspend,
        Self::Down,
        Self::Remove,
        Self::Preshared,
        Self::Endpoint,
        Self::Keepalive,
        Self::PrivateKey,
        Self::Seed,
        Self::Hybrid,
        Self::MoveAllowed,
        Self::Load,
        Self::Attack,
        Self::Ambush,
    ];
}

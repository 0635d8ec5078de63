//! Reasons for which packets and messages are dropped, and their counters.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Why something was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// A datagram whose length fits no message.
    Length,
    /// A datagram of no known type, or with reserved bytes set.
    Type,
    /// Transport data for an index that no session has.
    UnknownSession,
    /// Transport data for a session older than Reject-After-Time.
    ExpiredSession,
    /// Transport data that does not verify.
    NotAuthentic,
    /// Transport data with a counter from Reject-After-Messages on.
    Exhausted,
    /// Transport data that has been received before or is too late to tell.
    Replayed,
    /// An inner packet that is no IP packet or lies about its length.
    InnerMalformed,
    /// An inner packet from an address that is not the sender's.
    SourceNotAllowed,
    /// A packet that waited for a session, when too many did.
    StagedOverflow,
    /// Packets that waited for a session when the handshake was given up, the
    /// device went down or the peer was removed.
    StagedPurged,
    /// A handshake message while the device has no private key or is down.
    NotReady,
    /// A handshake message whose mac1 does not verify.
    Mac1,
    /// A handshake message answered with a cookie, under load.
    CookieDemanded,
    /// A handshake message without a cookie, when too many have none. It has been
    /// given none either; the source's next one, some 5 s later, has a better chance.
    CookieWithheld,
    /// A handshake message beyond what its source may send, under load.
    RateLimited,
    /// An initiation that does not verify.
    InitiationNotAuthentic,
    /// An initiation of nobody we know.
    UnknownPeer,
    /// An initiation whose timestamp is not greater than the last.
    InitiationReplayed,
    /// An initiation within 20 ms of the peer's last.
    InitiationFlood,
    /// A response that answers nothing.
    UnknownHandshake,
    /// A response that does not verify.
    ResponseNotAuthentic,
    /// A cookie reply that answers nothing or does not verify.
    CookieRefused,
    /// A handshake message that was waiting when 4,096 newer ones had come.
    BacklogFull,
    /// A datagram of this device that a route has led back into it.
    RoutingLoop,
    /// An ordinary initiation of a peer that must be post-quantum.
    PostQuantumRequired,
    /// A part of a hybrid response that has been received before.
    PartRepeated,
}

impl DropReason {
    /// Every cause, in the order of their numbers.
    pub const ALL: [Self; 27] = [
        Self::Length,
        Self::Type,
        Self::UnknownSession,
        Self::ExpiredSession,
        Self::NotAuthentic,
        Self::Exhausted,
        Self::Replayed,
        Self::InnerMalformed,
        Self::SourceNotAllowed,
        Self::StagedOverflow,
        Self::StagedPurged,
        Self::NotReady,
        Self::Mac1,
        Self::CookieDemanded,
        Self::CookieWithheld,
        Self::RateLimited,
        Self::InitiationNotAuthentic,
        Self::UnknownPeer,
        Self::InitiationReplayed,
        Self::InitiationFlood,
        Self::UnknownHandshake,
        Self::ResponseNotAuthentic,
        Self::CookieRefused,
        Self::BacklogFull,
        Self::RoutingLoop,
        Self::PostQuantumRequired,
        Self::PartRepeated,
    ];
}

// Counters are found by the number of a cause.
const _: () = assert!(DropReason::ALL.len() == DropReason::PartRepeated as usize + 1);

impl fmt::Display for DropReason {
    /// What has happened, and where a person can do something, what.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "its length fits no WireGuard message",
            Self::Type => "it is no WireGuard message",
            Self::UnknownSession => "it is for a session that is not there (any more)",
            Self::ExpiredSession => "its session is older than 180 s",
            Self::NotAuthentic => "it does not verify",
            Self::Exhausted => "its session has been used up",
            Self::Replayed => "it has been received before, or is too late to tell",
            Self::InnerMalformed => "what it holds is no IP packet, or lies about its length",
            Self::SourceNotAllowed => {
                "what it holds comes from an address that is not among the peer's AllowedIPs"
            }
            Self::StagedOverflow => "too many packets wait for a handshake",
            Self::StagedPurged => {
                "it waited for a handshake that has been given up; does the peer answer at its \
                 Endpoint?"
            }
            Self::NotReady => "this device has no private key, or is down",
            Self::Mac1 => {
                "mac1 is not for our public key; does that peer have the right PublicKey for us?"
            }
            Self::CookieDemanded => "under load; a cookie has been asked for",
            Self::CookieWithheld => "under load; a cookie is given to who asks again",
            Self::RateLimited => "under load; its source sends too many",
            Self::InitiationNotAuthentic => "the initiation does not verify",
            Self::UnknownPeer => {
                "no peer here has the sender's public key, or, in a hybrid handshake, its \
                 PqPublicKey and our suite"
            }
            Self::InitiationReplayed => {
                "its timestamp is not greater than the last; has the peer's clock gone back?"
            }
            Self::InitiationFlood => "the peer initiates more than 50 times a second",
            Self::UnknownHandshake => "it answers no handshake of ours",
            Self::ResponseNotAuthentic => {
                "the response does not verify; do both sides have the same PresharedKey?"
            }
            Self::CookieRefused => "the cookie answers nothing, or does not verify",
            Self::BacklogFull => "too many handshake messages wait",
            Self::RoutingLoop => {
                "a route leads to a peer's endpoint through the tunnel to that peer"
            }
            Self::PostQuantumRequired => {
                "the handshake is ordinary, and this peer must be post-quantum (require, or prefer \
                 that has had such a handshake before); has the peer our PqPublicKey?"
            }
            Self::PartRepeated => "it, or another in its place, has been received before",
        })
    }
}

/// One number per [`DropReason`].
#[derive(Default)]
pub struct Counters([AtomicU64; DropReason::ALL.len()]);

impl Counters {
    /// How often `cause` has led to a drop.
    #[must_use]
    pub fn count(&self, cause: DropReason) -> u64 {
        self.0[cause as usize].load(Ordering::Relaxed)
    }

    /// Adds to the number of a cause: for an engine, whose queues and routes drop as well
    /// ([`DropReason::BacklogFull`], [`DropReason::RoutingLoop`]).
    pub fn add(&self, cause: DropReason, count: u64) {
        if count > 0 {
            self.0[cause as usize].fetch_add(count, Ordering::Relaxed);
        }
    }
}

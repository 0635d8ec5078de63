//! Reasons for dropping packets and messages, results of handshakes, and the counters of both.

use crate::histogram::{Durations, Histogram};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// Reason for dropping a packet or message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// A datagram whose length fits no message.
    Length,
    /// A datagram of unknown type, or with non-zero reserved bytes.
    Type,
    /// Transport data with a receiver index of no session.
    UnknownSession,
    /// Transport data for a session older than Reject-After-Time.
    ExpiredSession,
    /// Transport data that does not verify.
    NotAuthentic,
    /// Transport data with a counter from Reject-After-Messages on.
    Exhausted,
    /// Transport data that has been received before, or is older than the replay window.
    Replayed,
    /// An inner packet that is not an IP packet, or whose header gives a wrong length.
    InnerMalformed,
    /// An inner packet whose source address is not among the sender's allowed IPs.
    SourceNotAllowed,
    /// A packet that waited for a session and was displaced because too many waited.
    StagedOverflow,
    /// Packets that waited for a session until the handshake failed, the device went down or the
    /// peer was removed.
    StagedPurged,
    /// A handshake message while the device has no private key or is down.
    NotReady,
    /// A handshake message whose mac1 does not verify.
    Mac1,
    /// A handshake message that was answered with a cookie, under load.
    CookieDemanded,
    /// A handshake message without a cookie, when too many arrive: it was not answered. The
    /// source's next one, some 5 s later, has a better chance.
    CookieWithheld,
    /// A handshake message beyond its source's rate limit, under load.
    RateLimited,
    /// An initiation that does not verify.
    InitiationNotAuthentic,
    /// An initiation with an unknown static key or, in a hybrid handshake, identity.
    UnknownPeer,
    /// An initiation whose timestamp is not greater than the peer's last one.
    InitiationReplayed,
    /// An initiation within 20 ms of the peer's last.
    InitiationFlood,
    /// A response to no initiation that waits for one.
    UnknownHandshake,
    /// A response that does not verify.
    ResponseNotAuthentic,
    /// A cookie reply that answers no message or does not verify.
    CookieRefused,
    /// A handshake message that waited in the queue until 4,096 newer ones had arrived.
    BacklogFull,
    /// A datagram of this device that a route has led back into its own tunnel.
    RoutingLoop,
    /// An ordinary initiation from a peer that requires post-quantum handshakes.
    PostQuantumRequired,
    /// A part of a hybrid message, when it or another in its place has been received before.
    PartRepeated,
}

impl DropReason {
    /// Every reason, in the order of its discriminants.
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

    /// Returns a stable identifier, such as `unknown-session`.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Type => "type",
            Self::UnknownSession => "unknown-session",
            Self::ExpiredSession => "expired-session",
            Self::NotAuthentic => "not-authentic",
            Self::Exhausted => "exhausted",
            Self::Replayed => "replayed",
            Self::InnerMalformed => "inner-malformed",
            Self::SourceNotAllowed => "source-not-allowed",
            Self::StagedOverflow => "staged-overflow",
            Self::StagedPurged => "staged-purged",
            Self::NotReady => "not-ready",
            Self::Mac1 => "mac1",
            Self::CookieDemanded => "cookie-demanded",
            Self::CookieWithheld => "cookie-withheld",
            Self::RateLimited => "rate-limited",
            Self::InitiationNotAuthentic => "initiation-not-authentic",
            Self::UnknownPeer => "unknown-peer",
            Self::InitiationReplayed => "initiation-replayed",
            Self::InitiationFlood => "initiation-flood",
            Self::UnknownHandshake => "unknown-handshake",
            Self::ResponseNotAuthentic => "response-not-authentic",
            Self::CookieRefused => "cookie-refused",
            Self::BacklogFull => "backlog-full",
            Self::RoutingLoop => "routing-loop",
            Self::PostQuantumRequired => "post-quantum-required",
            Self::PartRepeated => "part-repeated",
        }
    }
}

/// Result of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeResult {
    /// A session by a handshake that this device began.
    Initiated,
    /// A session by a handshake that the peer began, confirmed by its first packet.
    Responded,
    /// The peer has not answered any initiation for Rekey-Attempt-Time.
    Unanswered,
}

impl HandshakeResult {
    /// Every result, in the order of its discriminants.
    pub const ALL: [Self; 3] = [Self::Initiated, Self::Responded, Self::Unanswered];

    /// Returns a stable identifier.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Initiated => "initiated",
            Self::Responded => "responded",
            Self::Unanswered => "unanswered",
        }
    }
}

// [`Counters`] is indexed by the discriminant.
const _: () = assert!(DropReason::ALL.len() == DropReason::PartRepeated as usize + 1);
const _: () = assert!(HandshakeResult::ALL.len() == HandshakeResult::Unanswered as usize + 1);

impl fmt::Display for DropReason {
    /// Formats the event, followed by advice where the user can act.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "the length is not that of a WireGuard message",
            Self::Type => "not a WireGuard message",
            Self::UnknownSession => "no session has this receiver index",
            Self::ExpiredSession => "the session has expired: it is older than 180 s",
            Self::NotAuthentic => "the message does not verify",
            Self::Exhausted => "the counter has reached the limit of the session",
            Self::Replayed => "replayed, or older than the replay window",
            Self::InnerMalformed => "the inner packet is not an IP packet, or its length is wrong",
            Self::SourceNotAllowed => {
                "the inner source address is not among the peer's AllowedIPs"
            }
            Self::StagedOverflow => "too many packets wait for a session",
            Self::StagedPurged => {
                "the handshake that the packet waited for failed; check the peer's Endpoint"
            }
            Self::NotReady => "the device has no private key, or is down",
            Self::Mac1 => {
                "mac1 does not verify; check this device's PublicKey on the peer"
            }
            Self::CookieDemanded => "under load: answered with a cookie",
            Self::CookieWithheld => {
                "under load: not answered; only senders that ask again get a cookie"
            },
            Self::RateLimited => "under load: the source exceeds its rate limit",
            Self::InitiationNotAuthentic => "the initiation does not verify",
            Self::UnknownPeer => {
                "no peer has the sender's public key, or, in a hybrid handshake, its PqPublicKey \
                 and this suite"
            }
            Self::InitiationReplayed => {
                "the timestamp is not greater than the last one; check the peer's clock"
            }
            Self::InitiationFlood => "the peer sends more than 50 initiations per second",
            Self::UnknownHandshake => "no initiation waits for this response",
            Self::ResponseNotAuthentic => {
                "the response does not verify; check the PresharedKey on both sides"
            }
            Self::CookieRefused => "the cookie reply answers no message, or does not verify",
            Self::BacklogFull => "too many handshake messages wait",
            Self::RoutingLoop => {
                "a route leads to a peer's endpoint through the tunnel to that peer"
            }
            Self::PostQuantumRequired => {
                "an ordinary handshake, but the peer requires post-quantum handshakes (PostQuantum = \
                 require, or prefer after a hybrid handshake); check this device's PqPublicKey on \
                 the peer"
            }
            Self::PartRepeated => "this part, or another one in its place, has been received before",
        })
    }
}

/// Counters of drops, one per [`DropReason`], and of handshakes.
#[derive(Default)]
pub struct Counters(Values);

#[derive(Default)]
struct Values {
    drops: [AtomicU64; DropReason::ALL.len()],
    handshakes: [AtomicU64; HandshakeResult::ALL.len()],
    handshake_times: Histogram,
}

impl Counters {
    /// Returns the number of drops for this reason.
    #[must_use]
    pub fn count(&self, cause: DropReason) -> u64 {
        self.0.drops[cause as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of handshakes with this result.
    #[must_use]
    pub fn handshakes(&self, result: HandshakeResult) -> u64 {
        self.0.handshakes[result as usize].load(Ordering::Relaxed)
    }

    /// Returns the times from this device's initiations to the responses that completed their
    /// handshakes. Of an initiation that was repeated, the last one counts.
    #[must_use]
    pub fn handshake_times(&self) -> Durations {
        self.0.handshake_times.durations()
    }

    pub(crate) fn add_handshake_time(&self, time: Duration) {
        let mut durations = Durations::default();
        durations.add(time);
        self.0.handshake_times.add(&durations);
    }

    pub(crate) fn count_handshake(&self, result: HandshakeResult) {
        self.0.handshakes[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `count` to a counter. For an engine, whose queues and routes drop packets as well
    /// ([`DropReason::BacklogFull`], [`DropReason::RoutingLoop`]).
    pub fn add(&self, cause: DropReason, count: u64) {
        if count > 0 {
            self.0.drops[cause as usize].fetch_add(count, Ordering::Relaxed);
        }
    }
}

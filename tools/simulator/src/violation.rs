//! The checked invariants, and the report of a violation.

use core::fmt;

use crate::plan::{Nanos, Time};

/// An invariant, checked after every event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Invariant {
    /// Each counter of a session is used for one message.
    CounterOnce,
    /// Delivered packets were sent to this host, and are delivered once.
    Delivery,
    /// A peer's endpoint is the source of its last authentic message.
    Roaming,
    /// An unauthenticated datagram changes nothing.
    Unauthenticated,
    /// No key older than 180 s is used.
    KeyUse,
    /// No key stays in memory for more than 540 s, after its device went down, or after its peer
    /// was removed.
    KeyMemory,
    /// A pair that can exchange packets does so within a bounded time.
    Liveness,
    /// Memory is bounded.
    Memory,
    /// Actions with a deadline happen in time.
    Deadline,
    /// Nothing wakes an idle device.
    Idle,
    /// A staged packet is sent or counted as dropped.
    Staged,
    /// A hybrid initiation changes no established session or endpoint before its session is used.
    Provisional,
    /// An attacker with X25519 keys but without an ML-KEM key gets no session.
    Impersonation,
    /// Both ends allow the kind of their session, and agree on it.
    Suite,
    /// Handshake messages are small enough for every network.
    Size,
}

impl Invariant {
    /// All invariants.
    const ALL: [Self; 15] = [
        Self::CounterOnce,
        Self::Delivery,
        Self::Roaming,
        Self::Unauthenticated,
        Self::KeyUse,
        Self::KeyMemory,
        Self::Liveness,
        Self::Memory,
        Self::Deadline,
        Self::Idle,
        Self::Staged,
        Self::Provisional,
        Self::Impersonation,
        Self::Suite,
        Self::Size,
    ];

    /// Returns the invariant with a name, such as `CounterOnce`.
    ///
    /// # Errors
    /// The list of names, if it is none of them.
    pub fn of(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|it| format!("{it:?}") == name);
        found.ok_or_else(|| format!("{name:?} is not an invariant; these are: {:?}", Self::ALL))
    }

    /// Returns the requirement in a sentence.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::CounterOnce => "each counter of a session is used once",
            Self::Delivery => "a delivered packet was sent to this host, and is delivered once",
            Self::Unauthenticated => "a datagram that is not authentic changes nothing",
            Self::Roaming => "a peer's endpoint is the source of its last authentic message",
            Self::KeyUse => "no key is used from 180 s of age on",
            Self::KeyMemory => "keys are erased after 540 s, on going down and on removal",
            Self::Liveness => "a pair that can exchange packets does so in time",
            Self::Memory => "memory is bounded",
            Self::Deadline => "messages with a deadline are sent in time",
            Self::Idle => "nothing wakes an idle device",
            Self::Staged => "a staged packet is sent or counted as dropped",
            Self::Provisional => {
                "a hybrid initiation changes no endpoint or session before its own is used"
            }
            Self::Impersonation => "X25519 keys without an ML-KEM key give no session",
            Self::Suite => "both ends of a session allow its suite and agree on it",
            Self::Size => "handshake messages are small enough for every network",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({})", self.sentence())
    }
}

/// A violated invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// Description of the violation.
    pub what: String,
    /// Time since the start of the episode.
    pub at: Nanos,
}

impl Violation {
    /// Creates a violation; the world fills in the time.
    #[must_use]
    pub fn new(invariant: Invariant, what: String) -> Self {
        Self {
            invariant,
            what,
            at: 0,
        }
    }

    /// Adds the two hosts to the description.
    #[must_use]
    pub(crate) fn between(self, host: usize, other: usize) -> Self {
        let what = format!("host {host} to {other}: {}", self.what);
        Self { what, ..self }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.invariant, Time(self.at), self.what)
    }
}

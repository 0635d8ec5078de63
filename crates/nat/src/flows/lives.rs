//! How long flows live, and which of them is the oldest.

use std::time::Duration;

use taupe_protocol::time::Instant;

/// No flow: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// What a flow has come to, which says how long it may be idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Opened from the tunnel, and nobody here has answered yet: 10 s, however
    /// much arrives.
    Unanswered,
    /// ICMP queries: 60 s (RFC 5508 REQ-2).
    Icmp,
    /// TCP that is opening or closing: 4 min (RFC 5382 REQ-5).
    Transitory,
    /// DNS over UDP: 30 s. A port below 1,024 may have less than others
    /// (RFC 4787 REQ-5 a), and a resolver uses a new one for each question.
    Dns,
    /// UDP that has not been answered: 5 min (RFC 4787 REQ-5).
    Asked,
    /// UDP that was opened from the tunnel and has been answered: 5 min
    /// (RFC 4787 REQ-5). Who answers strangers, as nodes of a distributed hash
    /// table do, has many of these.
    Served,
    /// UDP in both directions: 5 min (RFC 4787 REQ-5).
    Udp,
    /// TCP in both directions: 2 h 4 min (RFC 5382 REQ-5).
    Established,
    /// Other protocols: 5 min.
    Other,
}

impl Life {
    /// How many there are.
    pub(super) const COUNT: usize = 9;

    /// Those that give way to a new flow when the table is full.
    pub(super) const EXPENDABLE: [Self; 6] = [
        Self::Unanswered,
        Self::Icmp,
        Self::Transitory,
        Self::Dns,
        Self::Asked,
        Self::Served,
    ];

    /// Those of them that give way to a flow that is opened from the tunnel:
    /// nobody else's than such flows'.
    pub(super) const OF_PEERS: [Self; 2] = [Self::Unanswered, Self::Served];

    /// How long a flow may be idle.
    pub const fn timeout(self) -> Duration {
        Duration::from_secs(match self {
            Self::Unanswered => 10,
            Self::Dns => 30,
            Self::Icmp => 60,
            Self::Transitory => 4 * 60,
            Self::Asked | Self::Served | Self::Udp | Self::Other => 5 * 60,
            Self::Established => 124 * 60,
        })
    }
}

/// Flows of one life from the one idle for longest to the one used last. The
/// links are in the flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) oldest: u32,
    pub(super) newest: u32,
    pub(super) len: usize,
}

impl List {
    pub(super) const EMPTY: Self = Self {
        oldest: NONE,
        newest: NONE,
        len: 0,
    };
}

/// A flow's place in its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) life: Life,
    pub(super) used: Instant,
    pub(super) older: u32,
    pub(super) newer: u32,
}

impl Link {
    pub(super) fn expired(&self, now: Instant) -> bool {
        self.used + self.life.timeout() <= now
    }
}

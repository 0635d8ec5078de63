//! Idle timeouts of flows, and the list of flows for each timeout.

use std::time::Duration;

use taupe_protocol::time::Instant;

/// End of a list.
pub(super) const NONE: u32 = u32::MAX;

/// The state of a flow, which determines its idle timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// Opened from the tunnel and not answered yet: 10 s, however many packets arrive.
    Unanswered,
    /// ICMP queries: 60 s (RFC 5508 REQ-2).
    Icmp,
    /// TCP that is opening or closing: 4 min (RFC 5382 REQ-5).
    Transitory,
    /// DNS over UDP: 30 s. The timeout for a port below 1,024 may be shorter (RFC 4787 REQ-5 a),
    /// and a resolver uses a new port for each query.
    Dns,
    /// UDP that has not been answered: 5 min (RFC 4787 REQ-5).
    UdpUnanswered,
    /// UDP opened from the tunnel and answered: 5 min (RFC 4787 REQ-5). An application that answers
    /// strangers, such as a node of a distributed hash table, has many of these.
    UdpFromPeer,
    /// UDP in both directions: 5 min (RFC 4787 REQ-5).
    Udp,
    /// TCP in both directions: 2 h 4 min (RFC 5382 REQ-5).
    Established,
    /// Other protocols: 5 min.
    Other,
}

impl FlowState {
    pub(super) const COUNT: usize = 9;

    /// Flows that a new flow may displace when the table is full.
    pub(super) const EXPENDABLE: [Self; 6] = [
        Self::Unanswered,
        Self::Icmp,
        Self::Transitory,
        Self::Dns,
        Self::UdpUnanswered,
        Self::UdpFromPeer,
    ];

    /// Flows that a flow opened from the tunnel may displace: only other flows opened from the
    /// tunnel.
    pub(super) const OF_PEERS: [Self; 2] = [Self::Unanswered, Self::UdpFromPeer];

    /// Returns the time for which a flow may be idle.
    pub const fn timeout(self) -> Duration {
        Duration::from_secs(match self {
            Self::Unanswered => 10,
            Self::Dns => 30,
            Self::Icmp => 60,
            Self::Transitory => 4 * 60,
            Self::UdpUnanswered | Self::UdpFromPeer | Self::Udp | Self::Other => 5 * 60,
            Self::Established => 124 * 60,
        })
    }
}

/// The flows of one state in the order of their last use. The links are in the flows.
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

/// A flow's position in its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) state: FlowState,
    pub(super) used: Instant,
    pub(super) older: u32,
    pub(super) newer: u32,
}

impl Link {
    pub(super) fn expired(&self, now: Instant) -> bool {
        self.used + self.state.timeout() <= now
    }
}

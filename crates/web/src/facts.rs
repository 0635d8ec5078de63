//! The state of tunnels as the parent sends it: `status` is that of `taupe status --json`.
//! Members that the page does not show are skipped. All others are required.

use crate::text::Text;
use serde::Deserialize;
use std::cmp::Reverse;

/// Peers of a tunnel that the page shows. `taupe status --peers` lists all.
pub(crate) const MAX_PEERS: usize = 100;

/// The state at one time.
#[derive(Deserialize, Default, Debug)]
pub(crate) struct Facts {
    /// Unix time in seconds.
    pub(crate) at: u64,
    pub(crate) status: Status,
    pub(crate) devices: Vec<Device>,
    pub(crate) applications: Vec<Application>,
    /// True if there are more of them.
    pub(crate) applications_truncated: bool,
    /// Number of blocked applications that are not in the list.
    pub(crate) blocked_left_out: u64,
    /// Reason why connections are not listed.
    pub(crate) flows_error: Option<Text>,
    /// Tunnels whose rules have running processes.
    pub(crate) rules: Vec<Rule>,
}

#[derive(Deserialize, Default, Debug)]
pub(crate) struct Status {
    pub(crate) tunnels: Vec<Tunnel>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    #[default]
    Up,
    Degraded,
    Down,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Transparent,
    Marks,
    Adapter,
}

#[derive(Deserialize, Default, Debug)]
pub(crate) struct Tunnel {
    pub(crate) interface: Text,
    pub(crate) state: State,
    pub(crate) findings: Vec<Finding>,
    pub(crate) notes: Vec<Text>,
    pub(crate) mode: Option<Mode>,
    pub(crate) file: Option<Text>,
    pub(crate) via: Option<Text>,
    pub(crate) since: Option<u64>,
    pub(crate) kill_switch: Option<KillSwitch>,
    pub(crate) rules: Vec<RuleLine>,
    pub(crate) apps_of_user: Option<Text>,
    pub(crate) forwarded: bool,
    pub(crate) uplinks: Vec<Uplink>,
    pub(crate) gaps: Vec<Gap>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) peers: Vec<Peer>,
}

/// Traffic that is blocked if the tunnel's process ends.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KillSwitch {
    App,
    All,
    Off,
}

#[derive(Deserialize, Debug)]
pub(crate) struct Finding {
    pub(crate) code: Text,
    pub(crate) text: Text,
}

#[derive(Deserialize, Debug)]
pub(crate) struct RuleLine {
    pub(crate) key: Text,
    pub(crate) application: Text,
}

#[derive(Deserialize, Debug)]
pub(crate) struct Uplink {
    pub(crate) name: Text,
    pub(crate) guarded: bool,
}

#[derive(Deserialize, Debug)]
pub(crate) struct Gap {
    pub(crate) text: Text,
}

#[derive(Deserialize, Debug)]
pub(crate) struct Counter {
    pub(crate) count: u64,
    pub(crate) text: Text,
}

#[derive(Deserialize, Default, Debug)]
pub(crate) struct Peer {
    pub(crate) public_key: Text,
    pub(crate) name: Option<Text>,
    pub(crate) endpoint: Option<Text>,
    pub(crate) latest_handshake: Option<u64>,
    pub(crate) unanswered_handshakes: u32,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) post_quantum: Option<PostQuantum>,
}

#[derive(Deserialize, Debug)]
pub(crate) struct PostQuantum {
    pub(crate) text: Text,
}

/// Figures of a tunnel's device.
#[derive(Deserialize, Default, Debug)]
pub(crate) struct Device {
    pub(crate) interface: Text,
    /// From an initiation of the device to the response.
    pub(crate) handshakes: Option<Times>,
    /// Waits of packets in the fair queue.
    pub(crate) waits: Option<Times>,
    /// Packets that the device has dropped, by reasons.
    pub(crate) drops: Vec<DropCount>,
}

#[derive(Deserialize, Debug)]
pub(crate) struct DropCount {
    pub(crate) reason: Text,
    pub(crate) count: u64,
}

/// Durations, counted by ranges.
#[derive(Deserialize, Clone, PartialEq, Default, Debug)]
pub(crate) struct Times {
    /// Greatest durations of the ranges in seconds; the last range has none.
    pub(crate) bounds: Vec<f64>,
    pub(crate) counts: Vec<u64>,
    /// Sum of all durations in seconds.
    pub(crate) seconds: f64,
}

/// Path of an application's packets.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Refused,
    Tunnel,
    Direct,
}

/// Connections of one user's application that have the same path.
#[derive(Deserialize, Debug)]
pub(crate) struct Application {
    /// Path of the program. `None` if the process is unknown.
    pub(crate) application: Option<Text>,
    pub(crate) uid: u32,
    pub(crate) tunnel: Option<Text>,
    pub(crate) verdict: Verdict,
    pub(crate) why: Option<Text>,
    pub(crate) connections: u64,
    pub(crate) processes: u64,
    pub(crate) remotes: Vec<Text>,
    pub(crate) sent_bytes: Option<u64>,
    pub(crate) received_bytes: Option<u64>,
}

/// Running processes that a rule of a tunnel's file matches.
#[derive(Deserialize, Debug)]
pub(crate) struct Rule {
    pub(crate) tunnel: Text,
    pub(crate) key: Text,
    pub(crate) application: Text,
    pub(crate) processes: u64,
}

impl Tunnel {
    /// Returns the peers that the page shows, those with the latest handshakes first.
    pub(crate) fn shown_peers(&self) -> Vec<&Peer> {
        let mut sorted: Vec<_> = self.peers.iter().collect();
        sorted.sort_by_key(|peer| (Reverse(peer.latest_handshake), &peer.name));
        sorted.truncate(MAX_PEERS);
        sorted
    }
}

impl Facts {
    /// Parses them.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }
}

#[cfg(test)]
mod tests;

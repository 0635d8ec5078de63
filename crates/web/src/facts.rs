//! The state of tunnels as the parent sends it: `status` is that of `taupe status --json`.
//! Members that the page does not show are skipped.

use crate::text::Text;
use serde::Deserialize;

/// The state at one time.
#[derive(Deserialize, Default, Debug)]
pub(crate) struct Facts {
    /// Unix time in seconds.
    pub(crate) at: u64,
    pub(crate) status: Status,
    #[serde(default)]
    pub(crate) devices: Vec<Device>,
    #[serde(default)]
    pub(crate) applications: Vec<Application>,
    /// True if there are more of them.
    #[serde(default)]
    pub(crate) applications_truncated: bool,
    /// Reason why connections are not listed.
    #[serde(default)]
    pub(crate) flows_error: Option<Text>,
    /// Tunnels whose rules have running processes.
    #[serde(default)]
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
    #[serde(default)]
    pub(crate) findings: Vec<Finding>,
    #[serde(default)]
    pub(crate) notes: Vec<Text>,
    #[serde(default)]
    pub(crate) mode: Option<Mode>,
    #[serde(default)]
    pub(crate) file: Option<Text>,
    #[serde(default)]
    pub(crate) via: Option<Text>,
    #[serde(default)]
    pub(crate) since: Option<u64>,
    #[serde(default)]
    pub(crate) kill_switch: Option<KillSwitch>,
    #[serde(default)]
    pub(crate) rules: Vec<RuleLine>,
    #[serde(default)]
    pub(crate) apps_of_user: Option<Text>,
    #[serde(default)]
    pub(crate) forwarded: bool,
    #[serde(default)]
    pub(crate) uplinks: Vec<Uplink>,
    #[serde(default)]
    pub(crate) gaps: Vec<Gap>,
    #[serde(default)]
    pub(crate) counters: Vec<Counter>,
    #[serde(default)]
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
    #[serde(default)]
    pub(crate) name: Option<Text>,
    #[serde(default)]
    pub(crate) endpoint: Option<Text>,
    #[serde(default)]
    pub(crate) latest_handshake: Option<u64>,
    #[serde(default)]
    pub(crate) unanswered_handshakes: u32,
    #[serde(default)]
    pub(crate) received_bytes: u64,
    #[serde(default)]
    pub(crate) sent_bytes: u64,
    #[serde(default)]
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
    #[serde(default)]
    pub(crate) handshakes: Option<Times>,
    /// Waits of packets in the fair queue.
    #[serde(default)]
    pub(crate) waits: Option<Times>,
    /// Packets that the device has dropped, by reasons.
    #[serde(default)]
    pub(crate) drops: Vec<Drop>,
}

#[derive(Deserialize, Debug)]
pub(crate) struct Drop {
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

/// Connections of one application that have the same path.
#[derive(Deserialize, Debug)]
pub(crate) struct Application {
    /// Path of the program. `None` if the process is unknown.
    pub(crate) application: Option<Text>,
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

impl Facts {
    /// Parses them.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }
}

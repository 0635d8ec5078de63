//! The decisions about a packet, in their order.

use super::destinations::local;
use crate::destination::Destination;
use crate::families::MissingRoute;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use taupe_config::application::{AppVerdict, Decision, Process};
use taupe_config::destinations::table_for_peers;
use taupe_config::file::edit::{Entry, entries};
use taupe_config::file::{File, Forwarded, Key};

pub(super) const APPLICATION: &str = "application";

/// Packets that are explained.
pub(super) struct Packets<'a> {
    pub(super) from: Sender<'a>,
    pub(super) to: Option<Destination>,
    pub(super) addresses: &'a [IpAddr],
    /// The destination is link-local, and is itself the next hop.
    pub(super) is_on_link: bool,
}

impl Packets<'_> {
    pub(super) fn is_this_host(&self, address: IpAddr) -> bool {
        address.is_loopback() || address.is_unspecified() || self.addresses.contains(&address)
    }
}

pub(super) enum Sender<'a> {
    Process {
        process: Process<'a>,
        judgement: AppVerdict<'a>,
        /// The process carries the tunnel.
        is_device_process: bool,
        /// The process is in another network namespace.
        is_in_other_namespace: bool,
    },
    /// Another machine, through this one.
    Forwarded,
}

/// One of the decisions, in their order.
#[derive(Debug, Serialize)]
pub struct Step {
    pub(super) title: &'static str,
    pub(super) text: String,
    /// It is the one that decides.
    pub decides: bool,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.decides { "=>" } else { "  " };
        write!(f, "{mark} {:<29} {}", self.title, self.text)
    }
}

/// Result of a step, with the reason.
pub(super) enum StepOutcome {
    /// The step does not decide, and the next one follows.
    Continues(String),
    Decides(String),
}

/// A file and the state of the system, from which packets are explained.
pub(super) struct Explanation<'a> {
    pub(super) shown: PathBuf,
    pub(super) text: &'a [u8],
    pub(super) file: &'a File,
    /// The tunnel is up in adapter mode, by the mark of sockets.
    pub(super) is_by_mark: bool,
    /// [`crate::families::missing_route`], or a stand-in in tests.
    pub(super) missing_route: fn(IpAddr) -> Option<MissingRoute>,
}

impl Explanation<'_> {
    /// Returns all steps. Steps after the deciding one say what they would decide.
    pub(super) fn steps(&self, packets: &Packets<'_>) -> Vec<Step> {
        let table = table_for_peers(&self.file.peers, self.bypasses_lan());
        let (is_device_process, decision, application) = match &packets.from {
            Sender::Process {
                process,
                judgement,
                is_device_process,
                ..
            } => {
                let verdict = self.application(process, judgement, packets.to, &table);
                (
                    *is_device_process,
                    judgement.decision,
                    (APPLICATION, verdict),
                )
            }
            Sender::Forwarded => {
                let (decision, verdict) = self.forwarded();
                (false, decision, ("forwarded", verdict))
            }
        };
        let is_in_other_namespace = matches!(
            packets.from,
            Sender::Process {
                is_in_other_namespace: true,
                ..
            }
        );
        let other_namespace = is_in_other_namespace.then(|| ("network", other_namespace()));
        let steps = [
            ("own packets", device_process(is_device_process)),
            (
                "this host and its link",
                local(packets, self.is_redirected(packets, decision)),
            ),
            ("DNS queries", self.dns(packets, decision, &table)),
            (
                "DisallowedIPs, local networks",
                self.disallowed(packets.to, &table),
            ),
            application,
            ("AllowedIPs", self.allowed(packets.to, &table)),
        ];
        let mut open = true;
        let step = |(title, verdict)| {
            let (text, decides) = match verdict {
                StepOutcome::Continues(text) => (text, false),
                StepOutcome::Decides(text) => (text, std::mem::replace(&mut open, false)),
            };
            Step {
                title,
                text,
                decides,
            }
        };
        other_namespace.into_iter().chain(steps).map(step).collect()
    }

    pub(super) fn bypasses_lan(&self) -> bool {
        self.file.transparent.bypass_lan.unwrap_or(false)
    }

    fn forwarded(&self) -> (Decision, StepOutcome) {
        let entries = entries(self.text, Key::Forwarded);
        let line = entries.first().map(|entry| self.at(Key::Forwarded, entry));
        match (self.file.transparent.forwarded.unwrap_or_default(), line) {
            (Forwarded::Tunnel, line) => {
                let text = format!(
                    "uses the tunnel ({}), except packets to networks of this machine's links \
                     without a default route",
                    line.unwrap_or_default()
                );
                (Decision::Tunnel, StepOutcome::Continues(text))
            }
            (Forwarded::Direct, Some(line)) => {
                let text = format!("bypasses the tunnel ({line})");
                (Decision::Bypass, StepOutcome::Decides(text))
            }
            (Forwarded::Direct, None) => {
                let text = "bypasses the tunnel: there is no Forwarded = tunnel".into();
                (Decision::Bypass, StepOutcome::Decides(text))
            }
        }
    }

    pub(super) fn at(&self, key: Key, entry: &Entry<'_>) -> String {
        let file = self.shown.display();
        format!("{file}:{}: {} = {}", entry.line, key.name(), entry.text)
    }
}

fn other_namespace() -> StepOutcome {
    StepOutcome::Decides(
        "not affected: the process is in another network namespace (a container, `taupe exec`, \
         `ip netns exec`), and these rules apply to this one; if this machine forwards its \
         packets, see `taupe explain --forwarded`"
            .into(),
    )
}

fn device_process(is_device_process: bool) -> StepOutcome {
    if is_device_process {
        StepOutcome::Decides("bypasses the tunnel: this process carries it".into())
    } else {
        StepOutcome::Continues("not the tunnel's own process".into())
    }
}

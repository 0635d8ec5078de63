//! The decisions about a packet, in their order.

use super::destinations::host;
use crate::destination::Destination;
use crate::families::Lack;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use taupe_config::application::{AppVerdict, Decision, Process};
use taupe_config::destinations::table_for_peers;
use taupe_config::file::edit::{Entry, entries};
use taupe_config::file::{File, Forwarded, Key};

pub(super) const APPLICATION: &str = "application";

/// A packet, or a group of packets.
pub(super) struct Question<'a> {
    pub(super) from: Sender<'a>,
    pub(super) to: Option<Destination>,
    pub(super) addresses: &'a [IpAddr],
    /// The destination is link-local, and is itself the next hop.
    pub(super) is_neighbour: bool,
}

impl Question<'_> {
    pub(super) fn is_this_host(&self, address: IpAddr) -> bool {
        address.is_loopback() || address.is_unspecified() || self.addresses.contains(&address)
    }
}

pub(super) enum Sender<'a> {
    Process {
        process: Process<'a>,
        judgement: AppVerdict<'a>,
        /// The process carries the tunnel.
        is_own: bool,
        /// The process is in another network namespace.
        is_elsewhere: bool,
    },
    /// Another machine, through this one.
    Elsewhere,
}

/// One of the decisions, in their order.
#[derive(Debug)]
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

pub(super) enum Verdict {
    /// The step does not apply, and the next one is asked.
    Passes(String),
    Decides(String),
}

/// A file and the state of the system, from which packets are explained.
pub(super) struct Explanation<'a> {
    pub(super) shown: PathBuf,
    pub(super) text: &'a [u8],
    pub(super) file: &'a File,
    /// The tunnel is up in adapter mode, by the mark of sockets.
    pub(super) by_mark: bool,
    /// [`crate::families::lack_of_route`], or a stand-in in tests.
    pub(super) lack_of_route: fn(IpAddr) -> Option<Lack>,
}

impl Explanation<'_> {
    /// Returns all steps. Steps after the deciding one say what they would decide.
    pub(super) fn steps(&self, question: &Question<'_>) -> Vec<Step> {
        let table = table_for_peers(&self.file.peers, self.bypasses_lan());
        let (is_own, decision, chosen) = match &question.from {
            Sender::Process {
                process,
                judgement,
                is_own,
                ..
            } => {
                let verdict = self.application(process, judgement, question.to, &table);
                (*is_own, judgement.decision, (APPLICATION, verdict))
            }
            Sender::Elsewhere => {
                let (decision, verdict) = self.forwarded();
                (false, decision, ("forwarded", verdict))
            }
        };
        let is_elsewhere = matches!(
            question.from,
            Sender::Process {
                is_elsewhere: true,
                ..
            }
        );
        let elsewhere = is_elsewhere.then(|| ("network", elsewhere()));
        let steps = [
            ("own packets", own(is_own)),
            (
                "this host and its link",
                host(question, self.is_asked_instead(question, decision)),
            ),
            (
                "questions for names",
                self.names(question, decision, &table),
            ),
            (
                "DisallowedIPs, local networks",
                self.past(question.to, &table),
            ),
            chosen,
            ("AllowedIPs", self.allowed(question.to, &table)),
        ];
        let mut open = true;
        let step = |(title, verdict)| {
            let (text, decides) = match verdict {
                Verdict::Passes(text) => (text, false),
                Verdict::Decides(text) => (text, std::mem::replace(&mut open, false)),
            };
            Step {
                title,
                text,
                decides,
            }
        };
        elsewhere.into_iter().chain(steps).map(step).collect()
    }

    pub(super) fn bypasses_lan(&self) -> bool {
        self.file.transparent.bypass_lan.unwrap_or(false)
    }

    fn forwarded(&self) -> (Decision, Verdict) {
        let entries = entries(self.text, Key::Forwarded);
        let line = entries.first().map(|entry| self.at(Key::Forwarded, entry));
        match (self.file.transparent.forwarded.unwrap_or_default(), line) {
            (Forwarded::Tunnel, line) => {
                let text = format!(
                    "uses the tunnel ({}), but for what goes to networks of this machine's links \
                     without a default route",
                    line.unwrap_or_default()
                );
                (Decision::Tunnel, Verdict::Passes(text))
            }
            (Forwarded::Direct, Some(line)) => {
                let text = format!("past the tunnel ({line})");
                (Decision::Bypass, Verdict::Decides(text))
            }
            (Forwarded::Direct, None) => {
                let text = "past the tunnel: there is no Forwarded = tunnel".into();
                (Decision::Bypass, Verdict::Decides(text))
            }
        }
    }

    pub(super) fn at(&self, key: Key, entry: &Entry<'_>) -> String {
        let file = self.shown.display();
        format!("{file}:{}: {} = {}", entry.line, key.name(), entry.text)
    }
}

fn elsewhere() -> Verdict {
    Verdict::Decides(
        "wherever its own network leads: it is in another network namespace (a container, `taupe \
         exec`, `ip netns exec`), and these rules are about this one; what comes from there by \
         this machine is forwarded (`taupe explain --forwarded`)"
            .into(),
    )
}

fn own(is_own: bool) -> Verdict {
    if is_own {
        Verdict::Decides("past the tunnel: this is the process that carries it".into())
    } else {
        Verdict::Passes("it is not the process that carries the tunnel".into())
    }
}

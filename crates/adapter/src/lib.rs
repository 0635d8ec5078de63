#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
//! Brings the tunnel of a wg-quick file up and down on a virtual adapter.
//!
//! ```text
//! file ─► look (resolve, list) ─► plan (pure) ─► journal ─► apply, one by one
//!                                                   └─────► undo, last to first
//! ```
//!
//! Every step on the system is a [`Change`]. It is written to a [`Journal`]
//! before it is taken, so that whoever comes next, after whatever death, can
//! take everything back: [`down()`] needs nothing else.
//!
//! | file | what it is |
//! |---|---|
//! | `change.rs` | one step, and the command that it is like |
//! | `plan.rs` | which steps, decided without touching anything |
//! | `journal.rs` | which steps have been taken, on disk |
//! | `mtu.rs` | the MTU of the interface |
//! | `namespace.rs` | where a tunnel is |
//! | `identity.rs` | the running device, whatever its interface is called |
//! | `machine.rs` | what steps are taken on, so that tests can make it fail |
//! | `linux.rs` | the real one |
//! | `up.rs`, `down.rs`, `reload.rs` | the order of it all |
//! | `save.rs` | the file of a running tunnel |
//! | `verify.rs`, `watch.rs` | changes compared with the system: on demand, and when it changes |
//! | `bypass.rs` | routes of others around a full tunnel |
//! | `dns.rs` | name servers |

mod bypass;
mod change;
pub mod dns;
mod down;
mod hook;
mod identity;
pub mod journal;
mod last_state;
mod linux;
mod machine;
mod mtu;
mod namespace;
mod networks;
mod plan;
mod reload;
mod save;
mod stopped;
mod tables;
mod up;
mod verify;
mod watch;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_config::file::File;
use thiserror::Error;

pub use bypass::Bypass;
pub use change::{Change, Hook, InterfaceKey, Phase};
pub use down::{Down, DownError, down, down_on};
pub use identity::{Place, Socket};
pub use journal::{Journal, State};
pub use last_state::LastState;
pub use linux::{Linux, is_ipv6_off};
pub use machine::{LookError, Machine, SaveError, StepError};
pub use namespace::Namespace;
pub use taupe_config::file::Personality;

pub use mtu::{TunnelMtu, mtu_inside};
pub use plan::{Plan, PlanError, Snapshot, plan};
pub use reload::{ReloadError, reload, reload_on};
pub use save::{Access, NotSaved, replace, save};
pub use up::{UpError, up, up_on};
pub use verify::{Comparison, Deviation, Finding, Kind, verify};
pub use watch::Watch;

/// What was asked for on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// The tunnel wins against routes that exist and local networks
    /// ([`Personality::Taupe`] only).
    pub override_routes: bool,
    /// The nf_tables table of a tunnelled default route is made.
    pub firewall: bool,
    /// Only packets with this mark use the tunnel, of which all bits count that are set in
    /// it; everybody else's go where they would without it.
    #[serde(default)]
    pub chosen: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            override_routes: false,
            firewall: true,
            chosen: None,
        }
    }
}

/// A tunnel, and what is wanted of it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The interface's name, 1 to 15 bytes.
    pub interface: &'a str,
    /// Where the file is.
    pub config: &'a Path,
    /// What it says.
    pub file: &'a File,
    /// Whose habits are followed.
    pub personality: Personality,
    /// What was asked for.
    pub options: Options,
    /// What the caller wants to be told again while the tunnel is up
    /// ([`journal::Header::memo`]).
    pub memo: &'a str,
    /// The tunnel that this one goes through.
    pub outer: Option<&'a Outer>,
}

/// A tunnel that another one goes through: nothing of it is seen on the system but that what
/// is sent to its endpoints leaves in the place of the inner one's datagrams.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outer {
    /// The name by which its device is configured.
    pub name: String,
    /// The file that it was made from.
    pub config: PathBuf,
    /// This machine's addresses in it.
    pub addresses: Vec<IpAddr>,
    /// What is reached by it.
    pub networks: Vec<IpNet>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The mark that its file has for its datagrams.
    pub mark: Option<u32>,
    /// Where its peers are, as far as that is known.
    pub endpoints: Vec<SocketAddr>,
}

/// Starts devices.
pub trait Devices {
    /// Starts a device, whose interface and configuration socket are there when
    /// this returns, and which ends by itself when its interface is deleted.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    fn start(&mut self, interface: &str) -> Result<(), String>;
}

/// Tells the person what happens.
pub trait Report {
    /// A step that is about to be taken, as the command that it is like:
    /// `wg-quick` prints it behind `[#]`.
    fn step(&mut self, command: &str);

    /// As [`Report::step`], of a route, of which there may be many.
    fn route(&mut self, command: &str) {
        self.step(command);
    }

    /// Something to know, in a sentence.
    fn note(&mut self, sentence: &str);

    /// Whether the person wants it to stop. Asked between two steps; what has
    /// been done is undone then.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Something that is left, because it could not be undone.
#[derive(Debug, Error)]
#[error("{command}: {error}")]
pub struct Leftover {
    /// The command that would have to be done.
    pub command: String,
    /// Why it was not.
    pub error: StepError,
}

/// Tells of a step that makes or undoes `change`.
pub(crate) fn tell(report: &mut dyn Report, change: &Change, command: &str) {
    match change {
        Change::Route { .. } | Change::Unreachable { .. } | Change::Special { .. } => {
            report.route(command);
        }
        _ => report.step(command),
    }
}

/// Leftovers as the end of a sentence.
pub(crate) fn list(leftovers: &[Leftover]) -> String {
    let lines: Vec<_> = leftovers.iter().map(Leftover::to_string).collect();
    lines.join("\n  ")
}

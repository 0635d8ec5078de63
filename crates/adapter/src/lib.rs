#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
//! Brings the tunnel of a wg-quick file up and down on a virtual adapter.
//!
//! ```text
//! file ─► look (resolve, list) ─► plan (pure) ─► journal ─► apply, one by one
//!                                                   └─────► undo, last to first
//! ```
//!
//! Every step on the system is a [`Change`]. It is written to a [`Journal`] before it is executed.
//! If a process is killed at any point, the next one can undo everything from the journal:
//! [`down()`] needs nothing else.
//!
//! Files; each uses only those above it:
//!
//! | file | contents |
//! |---|---|
//! | `namespace.rs`, `tables.rs`, `stopped.rs` | network namespaces, table names, stopped processes |
//! | `transparent.rs` | settings of transparent mode that a journal keeps |
//! | `request.rs`, `report.rs` | requests; progress and notes for the user |
//! | `dns.rs` | name servers |
//! | `change.rs` | one step, and its equivalent command |
//! | `setting.rs`, `step_table.rs` | settings that steps make; order, undoing, reload and comparison of each kind of step |
//! | `barrier.rs` | the block of a killed full tunnel, which stays until the next one is up |
//! | `bypass.rs` | foreign routes that bypass a full tunnel |
//! | `plan.rs` | the steps, computed without changing anything |
//! | `identity.rs`, `last_state.rs` | the running device, independent of its interface's name; its state after its end |
//! | `comparison.rs` | comparison of changes with the system |
//! | `journal.rs` | the executed steps, on disk |
//! | `machine.rs` | the interface to the system, which tests replace to inject failures |
//! | `hook.rs`, `saved_file.rs`, `linux.rs` | the implementation for Linux |
//! | `ownership.rs`, `steps.rs`, `teardown.rs` | applying and undoing one step; undoing all of them |
//! | `verify.rs`, `watch.rs` | verifying a tunnel that is up: on demand, and when the system changes |
//! | `up.rs`, `down.rs`, `reload.rs`, `save.rs` | the operations |

mod barrier;
mod bypass;
mod change;
mod comparison;
pub mod dns;
mod down;
mod file_stamp;
mod hook;
mod identity;
pub mod journal;
mod last_state;
mod linux;
mod machine;
mod namespace;
mod ownership;
mod plan;
mod reload;
mod report;
mod request;
mod save;
mod saved_file;
mod setting;
mod step_table;
mod steps;
mod stopped;
mod tables;
mod teardown;
mod transparent;
mod up;
mod verify;
mod watch;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

pub use bypass::Bypass;
pub use change::{Change, Hook, InterfaceKey, Phase};
pub use comparison::{Comparison, Deviation};
pub use down::{Down, DownError, down, down_on};
pub use file_stamp::FileStamp;
pub use identity::{Place, Socket};
pub use journal::{Journal, JournalError, Journals, State};
pub use last_state::LastState;
pub use linux::{Linux, is_ipv6_off};
pub use machine::{LookError, Machine, SaveError, StepError};
pub use namespace::Namespace;
pub use taupe_config::file::Compatibility;
pub use taupe_config::plan_note::{PlanNote, Remedy};

pub use plan::{Plan, PlanError, Snapshot, plan};
pub use reload::{ReloadError, reload, reload_on};
pub use report::Report;
pub use request::{Devices, Options, Outer, Request};
pub use save::{NotSaved, save};
pub use saved_file::{Access, replace};
pub use setting::Setting;
pub use steps::{ApplyError, Leftover};
pub use transparent::{NotTransparentSettings, Translation, TransparentSettings};
pub use up::{UpError, up, up_on};
pub use verify::{Finding, verify};
pub use watch::Watch;

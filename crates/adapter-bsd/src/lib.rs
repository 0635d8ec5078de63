//! Brings the tunnel of a wg-quick file up and down on FreeBSD and macOS.
//!
//! ```text
//! file ─► snapshot ─► plan (pure) ─► journal ─► apply, one by one ─► follow the network
//!                                       └─────► undo, last to first
//! ```
//!
//! The device's own process brings the tunnel up, follows the network, and undoes what outlives the
//! device. If it is killed, the next `up` or `down` does that from the journal.
//!
//! | file | contents |
//! |---|---|
//! | `device.rs`, `route.rs` | the device's interface; routes that a tunnel adds |
//! | `snapshot.rs` | the state of the system on which a plan depends |
//! | `dns.rs` | commands that set name servers |
//! | `plan.rs` | the steps, computed without changing anything |
//! | `journal.rs` | the changes that outlive the device, on disk |
//! | `machine.rs` | the interface to the system, which tests replace to inject failures |
//! | `tunnel.rs`, `undo.rs` | a tunnel that is up; undoing |
//! | `up.rs`, `down.rs`, `follow.rs`, `save.rs` | the operations |
//! | `bsd.rs`, `command_output.rs` | the real system, and its commands |
//!
//! The pure parts and the operations are tested on Linux. The calls in `bsd.rs` are compiled and
//! linked in the tests, and have run nowhere yet.

#![forbid(unsafe_code)]
#![cfg(unix)]

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
mod bsd;
#[cfg(any(target_os = "freebsd", target_os = "macos", test))]
mod command_output;
mod device;
pub mod dns;
mod down;
mod follow;
mod hooks;
pub mod journal;
mod machine;
mod plan;
mod route;
mod save;
mod snapshot;
mod tunnel;
mod undo;
mod up;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
pub use bsd::{Bsd, StartDevice, name_file, running_device};
pub use device::DeviceInterface;
pub use down::{Down, DownError, clean_up, down};
pub use follow::{FollowChange, FollowError, follow, keep_up};
pub use hooks::with_names;
pub use machine::{Machine, Report, SnapshotRequest, StepError};
pub use plan::{Options, Plan, PlanError, Step, plan};
pub use route::{Hop, TunnelRoute};
pub use save::{SaveError, save};
pub use snapshot::{Fibs, NetworkService, Snapshot};
pub use taupe_config::file::Compatibility;
pub use taupe_config::plan_note::PlanNote;
pub use tunnel::Tunnel;
pub use undo::{Leftover, LeftoverError};
pub use up::{ApplyError, Request, UpError, up};

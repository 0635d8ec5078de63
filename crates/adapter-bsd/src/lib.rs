#![forbid(unsafe_code)]
#![cfg(unix)]
//! Brings the tunnel of a wg-quick file up and down on FreeBSD and macOS.

mod device;
pub mod dns;
mod down;
mod follow;
mod hooks;
pub mod journal;
mod machine;
mod plan;
mod route;
mod snapshot;
mod tunnel;
mod undo;
mod up;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

pub use device::DeviceInterface;
pub use down::{DownError, clean_up, down};
pub use follow::{FollowChange, FollowError, follow, keep_up};
pub use hooks::with_names;
pub use machine::{Machine, Report, SnapshotRequest, StepError};
pub use plan::{Options, Plan, PlanError, Step, plan};
pub use route::{Hop, TunnelRoute};
pub use snapshot::{Fibs, NetworkService, Snapshot};
pub use taupe_config::file::Compatibility;
pub use taupe_config::plan_note::PlanNote;
pub use tunnel::Tunnel;
pub use undo::{Leftover, LeftoverError};
pub use up::{ApplyError, Request, UpError, up};

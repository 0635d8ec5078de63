//! Facts about tunnels, files, applications and this system, for commands that show them.
//!
//! All results are data that serialise to JSON. The command renders them for a terminal.

#![forbid(unsafe_code)]
// Fields of JSON documents and variants of errors have self-explanatory names.
#![allow(missing_docs)]

pub mod check;
pub mod conf;
pub mod interface;

// Modules for Linux only.
#[cfg(target_os = "linux")]
pub mod advice;
#[cfg(target_os = "linux")]
pub mod app_warnings;
#[cfg(target_os = "linux")]
pub mod destination;
#[cfg(target_os = "linux")]
pub mod doctor;
#[cfg(target_os = "linux")]
pub mod endpoint_names;
#[cfg(target_os = "linux")]
pub mod executables;
#[cfg(target_os = "linux")]
pub mod explain;
#[cfg(target_os = "linux")]
pub mod families;
#[cfg(target_os = "linux")]
pub mod flows;
#[cfg(target_os = "linux")]
pub mod json;
#[cfg(target_os = "linux")]
pub mod judge;
#[cfg(target_os = "linux")]
pub mod names;
#[cfg(target_os = "linux")]
pub mod processes;
#[cfg(target_os = "linux")]
pub mod report;
#[cfg(target_os = "linux")]
pub mod rules;
#[cfg(target_os = "linux")]
pub mod status;
#[cfg(target_os = "linux")]
pub mod traffic;
#[cfg(target_os = "linux")]
pub mod tunnel;

use std::time::Duration;

/// Formats a duration in one unit: `3 min`.
#[must_use]
pub fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Checks whether this process is root.
#[cfg(target_os = "linux")]
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

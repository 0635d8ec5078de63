//! Facts about tunnels, files, applications and this system, for commands that show them.
//!
//! All results are data that serialise to JSON. The command renders them for a terminal.

#![forbid(unsafe_code)]

pub mod check;
pub mod conf;
pub mod interface;
pub mod json;

cfg_if::cfg_if! {
    if #[cfg(target_os = "linux")] {
        pub mod advice;
        pub mod app_matcher;
        pub mod destination;
        pub mod dns;
        pub mod doctor;
        pub mod drops;
        pub mod endpoint_names;
        pub mod events;
        pub mod executables;
        pub mod explain;
        pub mod families;
        pub mod flows;
        pub mod metrics;
        pub mod processes;
        pub mod prove;
        pub mod report;
        pub mod rules;
        pub mod status;
        pub mod traffic;
        pub mod tunnel;

        mod app_warnings;
        #[path = "system/linux.rs"]
        mod system;

        pub use system::is_root;
    } else if #[cfg(windows)] {
        #[path = "system/windows.rs"]
        mod system;
    } else {
        #[path = "system/elsewhere.rs"]
        mod system;
    }
}

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

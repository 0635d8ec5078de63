//! The command and daemon.
//!
//! [`main`] parses the command line and the environment into an order and executes it.
//!
//! Exit status:
//!
//! | | |
//! |---|---|
//! | 0 | Success. A device in the background: the interface exists and its configuration socket answers. A device in the foreground: it ended by a signal, or because its interface or its socket was removed |
//! | 1 | Failure; the reason is on standard error |
//! | 2 | The command line or a variable is wrong, and nothing was done |
//!
//! Exceptions: `wg` and `wg-quick` have the exit status of those programs, as have the commands
//! that `wg` has too, where wrong usage is 1. `exec` returns the command's status, or 125 to 127 as
//! `env` does. `taupe status` returns the state of tunnels: 0 up, 1 down, 2 degraded, 3 unknown. `taupe
//! prove` returns 3 if it could not observe, since 1 means a leak. `taupe up --foreground` returns 75 if its device failed.

#![forbid(unsafe_code)]

mod allowed_ips;
mod check;
mod command_line;
mod console;
mod exit_status;
mod logging;
mod peer_notices;
mod progress_line;
mod proxy;
mod remarks;
mod wg;

pub use command_line::{COMMAND_GROUPS, CommandGroup};
use exit_status::{FAILED, MISUSED, complain, exit};

cfg_if::cfg_if! {
    if #[cfg(target_os = "linux")] {
        mod app;
        mod app_conflicts;
        mod arguments;
        mod background;
        mod capture;
        mod confinement;
        mod daemon;
        mod device;
        mod device_log;
        mod doctor;
        mod ending;
        mod endpoint_names;
        mod endpoints;
        mod exec;
        mod explain;
        mod events;
        mod flows;
        mod interrupt;
        mod linux;
        mod listening;
        mod metrics;
        mod mode;
        mod other_version;
        mod packet_process;
        mod paint;
        mod passed_descriptor;
        mod plan;
        mod plan_note;
        mod progress;
        mod prove;
        mod repeat;
        mod report;
        mod request_server;
        mod root;
        mod service;
        mod start_advice;
        mod state_dir;
        mod status;
        #[path = "system/linux.rs"]
        mod system;
        #[cfg(feature = "top")]
        mod top;
        mod tunnel;
        mod unprivileged;
        mod via;
        mod web;

        pub use arguments::command_line;
        pub use device::Device;
        pub use linux::{main, run};
    } else if #[cfg(windows)] {
        mod portable;
        #[path = "system/windows.rs"]
        mod system;
        mod windows;

        pub use windows::{Driver, PacketFilter, command_line, main, run};
    } else {
        mod bsd;
        mod passed_descriptor;
        mod plan_note;
        mod portable;
        #[path = "system/bsd.rs"]
        mod system;

        pub use bsd::{command_line, main, run};
    }
}

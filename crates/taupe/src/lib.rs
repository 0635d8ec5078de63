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
//! `env` does. `taupe status` returns the state of tunnels: 0 up, 1 down, 2 degraded, 3 unknown.

#![forbid(unsafe_code)]

mod arguments;
mod check;
mod console;
mod logging;
mod peer_notices;
mod proxy;
mod wg;

// Modules for Linux only.
#[cfg(target_os = "linux")]
mod app;
#[cfg(target_os = "linux")]
mod app_conflicts;
#[cfg(target_os = "linux")]
mod background;
#[cfg(target_os = "linux")]
mod capture;
#[cfg(target_os = "linux")]
mod daemon;
#[cfg(target_os = "linux")]
mod device;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod endpoint_names;
#[cfg(target_os = "linux")]
mod endpoints;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod explain;
#[cfg(target_os = "linux")]
mod flows;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod mode;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod root;
#[cfg(target_os = "linux")]
mod state_dir;
#[cfg(target_os = "linux")]
mod status;
#[cfg(target_os = "linux")]
mod tunnel;
#[cfg(target_os = "linux")]
mod via;

#[cfg(windows)]
mod windows;
// The part of the Windows code that does not depend on Windows, so that its tests run here.
#[cfg(all(test, not(windows)))]
mod windows {
    mod forwarding;
}

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(not(target_os = "linux"))]
#[path = "state_dir/elsewhere.rs"]
mod state_dir;

#[cfg(target_os = "linux")]
pub use device::Device;
#[cfg(not(target_os = "linux"))]
pub use elsewhere::main;
#[cfg(target_os = "linux")]
pub use linux::main;
#[cfg(windows)]
pub use windows::{Driver, PacketFilter};

pub use arguments::{COMMAND_GROUPS, CommandGroup};
use console::NotPrinted;
use ipnet::IpNet;
use std::fmt::Display;
use std::process::ExitCode;
use taupe_uapi::networks::subtract;

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

/// Returns the definition of the command line, from which manual pages and shell completions are
/// generated.
#[must_use]
pub fn command_line() -> clap::Command {
    arguments::definition()
}

/// Prints the shortest list of networks, in the format of `AllowedIPs`.
fn allowed_ips(networks: &[IpNet], except: &[IpNet]) -> ExitCode {
    let left = subtract(networks, except);
    if left.is_empty() {
        console::say(&"taupe: nothing is left: the list is empty");
    }
    let left: Vec<_> = left.iter().map(ToString::to_string).collect();
    let printed = console::print(format!("{}\n", left.join(", ")).as_bytes());
    exit(printed, ExitCode::SUCCESS)
}

/// Prints why there is no order, or the requested help or version. `misused` is the exit status of
/// wrong usage.
fn no_order(error: &arguments::Error, misused: u8) -> ExitCode {
    match error {
        arguments::Error::CommandLine(error) => {
            // Output of `--help` and `--version` is an error of clap too.
            let printed = console::print_by(|| error.print());
            if error.use_stderr() {
                misused.into()
            } else {
                exit(printed, ExitCode::SUCCESS)
            }
        }
        error => complain(error, misused),
    }
}

/// Returns `status`, unless printing the command's output failed.
fn exit(printed: Result<(), NotPrinted>, status: ExitCode) -> ExitCode {
    match printed {
        Ok(()) => status,
        Err(error) if error.is_unread() => FAILED.into(),
        Err(error) => complain(&error, FAILED),
    }
}

fn complain(error: &dyn Display, status: u8) -> ExitCode {
    console::say(&format_args!("taupe: {error}"));
    status.into()
}

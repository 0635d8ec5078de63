//! From the command line and the environment to an [`Order`].
//!
//! The name that the program is called by decides how the rest is read:
//! `taupe-device` and `wireguard-go` are `taupe device`; `boringtun-cli` and
//! `boringtun` take that program's options; `wg` and `wg-quick` are those of
//! wireguard-tools; any other name is `taupe`.

mod common;
mod groups;
mod proxy;

#[cfg(target_os = "linux")]
mod applications;
#[cfg(target_os = "linux")]
mod boringtun;
#[cfg(target_os = "linux")]
mod device;
#[cfg(target_os = "linux")]
mod diagnosis;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod quick;
#[cfg(target_os = "linux")]
mod taupe;
#[cfg(target_os = "linux")]
mod tunnels;

#[cfg(not(target_os = "linux"))]
mod elsewhere;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{Order, definition, parse};
pub use groups::{COMMAND_GROUPS, CommandGroup};
#[cfg(target_os = "linux")]
pub(crate) use linux::*;
pub(crate) use proxy::ProxyOrder;

use clap::{Command, FromArgMatches};
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};

/// Reasons why the command line gives no order.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The command line is wrong, or asks for help or the version only.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The command exists only on Linux.
    #[cfg(not(target_os = "linux"))]
    #[error(
        "`taupe {command}` exists only on Linux; `taupe help` lists the commands of this system, \
         such as `taupe proxy`"
    )]
    OfLinux { command: &'static str },
    /// A variable of the environment is wrong.
    #[cfg(target_os = "linux")]
    #[error("the environment has {variable}={value}: {reason}")]
    Variable {
        variable: &'static str,
        value: String,
        reason: String,
    },
}

/// The value of a variable, if it is set.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

const ABOUT: &str = "Userspace WireGuard";

/// The width of help in columns, where standard output is no terminal.
const WIDTH: usize = 80;

/// The greatest width of help: longer lines are hard to read.
const MAX_WIDTH: usize = 100;

/// Wraps help to the terminal. In a file or a pipe it has always the same width.
fn wrapped(command: Command) -> Command {
    if io::stdout().is_terminal() {
        command.max_term_width(MAX_WIDTH)
    } else {
        command.term_width(WIDTH)
    }
}

fn read<P: FromArgMatches>(
    command: Command,
    arguments: &[OsString],
    name: &str,
) -> Result<P, clap::Error> {
    let mut command = wrapped(command).bin_name(name);
    let matches = command.try_get_matches_from_mut(arguments)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

#[cfg(all(test, target_os = "linux"))]
mod tests;

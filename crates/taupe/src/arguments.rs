//! From the command line and the environment to an [`Order`].
//!
//! The name that the program is called by decides how the rest is read:
//! `taupe-device` and `wireguard-go` are `taupe device`; `boringtun-cli` and
//! `boringtun` take that program's options; `wg` and `wg-quick` are those of
//! wireguard-tools; any other name is `taupe`.

mod common;
mod proxy;

#[cfg(target_os = "linux")]
mod boringtun;
#[cfg(target_os = "linux")]
mod device;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod quick;
#[cfg(target_os = "linux")]
mod taupe;

#[cfg(not(target_os = "linux"))]
mod elsewhere;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{Order, definition, parse};
#[cfg(target_os = "linux")]
pub(crate) use linux::*;
pub(crate) use proxy::ProxyOrder;

use clap::Parser;
use std::ffi::OsString;

/// Why there is no order.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The command line is wrong, or asks for help or the version only.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// A command that only Linux has.
    #[cfg(not(target_os = "linux"))]
    #[error(
        "`taupe {command}` is for Linux, whose interfaces, routes and programs in the kernel it \
         takes; `taupe help` lists what there is here, such as `taupe proxy`, which takes none of \
         them"
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

fn read<P: Parser>(arguments: &[OsString], name: &str) -> Result<P, clap::Error> {
    let mut command = P::command().bin_name(name);
    let matches = command.try_get_matches_from_mut(arguments)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

#[cfg(all(test, target_os = "linux"))]
mod tests;

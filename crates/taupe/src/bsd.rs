//! The command on systems other than Linux and Windows.

use crate::command_line::ABOUT;
use crate::command_line::groups::grouped;
use crate::portable::{self, PortableCommand, after_help};
use clap::{CommandFactory as _, Parser};
use std::process::ExitCode;

/// Userspace WireGuard.
#[derive(Parser)]
#[command(name = "taupe", version, about = ABOUT, after_long_help = after_help())]
struct Taupe {
    #[command(subcommand)]
    command: PortableCommand,
}

/// Returns the definition of the command line, from which manual pages and shell completions are
/// generated.
#[must_use]
pub fn command_line() -> clap::Command {
    grouped(Taupe::command())
}

/// Executes the command in the process's arguments and environment.
#[must_use]
pub fn main() -> ExitCode {
    portable::main(<[_]>::to_vec, |taupe: Taupe, arguments| {
        taupe.command.run(arguments)
    })
}

/// Executes the command in the process's arguments and environment.
#[must_use]
pub fn run() -> ExitCode {
    main()
}

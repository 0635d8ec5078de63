//! Parts of the command line that all systems have.

pub(crate) mod common;
pub(crate) mod groups;
pub(crate) mod proxy;

pub use groups::{COMMAND_GROUPS, CommandGroup};

use clap::{Command, FromArgMatches};
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};

/// Returns the value of a variable, if it is set.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Summary of the program.
pub(crate) const ABOUT: &str = "Userspace WireGuard";

/// Version, with commit and date if it was built by `make`.
pub(crate) const VERSION: &str = match option_env!("TAUPE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Width of help in columns, if standard output is no terminal.
const WIDTH: usize = 80;

/// Greatest width of help, because longer lines are hard to read.
const MAX_WIDTH: usize = 100;

/// Wraps help to the terminal. In a file or a pipe it always has the same width.
fn wrapped(command: Command) -> Command {
    if io::stdout().is_terminal() {
        command.max_term_width(MAX_WIDTH)
    } else {
        command.term_width(WIDTH)
    }
}

/// Parses arguments, of which the first is the program's name. Messages call the program `name`.
pub(crate) fn read<P: FromArgMatches>(
    command: Command,
    arguments: &[OsString],
    name: &str,
) -> Result<P, clap::Error> {
    let mut command = wrapped(command).bin_name(name);
    let matches = command.try_get_matches_from_mut(arguments)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

//! Exit statuses, and the message of a command that fails.

use crate::console::{self, NotPrinted};
use std::fmt::Display;
use std::process::ExitCode;

pub(crate) const FAILED: u8 = 1;
pub(crate) const MISUSED: u8 = 2;

/// Prints the error of a wrong command line, or the requested help or version. `misused` is the
/// exit status of wrong usage.
pub(crate) fn usage(error: &clap::Error, misused: u8) -> ExitCode {
    // Output of `--help` and `--version` is an error of clap too.
    let printed = console::print_by(|| error.print());
    if error.use_stderr() {
        misused.into()
    } else {
        exit(printed, ExitCode::SUCCESS)
    }
}

/// Returns `status`, unless printing the command's output failed.
pub(crate) fn exit(printed: Result<(), NotPrinted>, status: ExitCode) -> ExitCode {
    match printed {
        Ok(()) => status,
        Err(error) if error.is_broken_pipe() => FAILED.into(),
        Err(error) => complain(&error, FAILED),
    }
}

/// Prints an error.
pub(crate) fn complain(error: &dyn Display, status: u8) -> ExitCode {
    console::say(&format_args!("taupe: {error}"));
    status.into()
}

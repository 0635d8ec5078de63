//! `taupe status`: shows tunnels as text or as JSON.

mod print;

use crate::arguments::StatusOrder;
use crate::console::{self, NotPrinted};
use crate::paint::Paint;
use crate::root;
use std::ffi::OsString;
use std::process::ExitCode;
use taupe_adapter::Compatibility;
use taupe_inspect::advice;
use taupe_inspect::status::{self, State, look};

/// Exit status if no state is known, and for wrong usage.
pub(crate) const UNKNOWN: u8 = 3;

/// Reason why no state can be shown.
#[derive(Debug, thiserror::Error)]
enum StatusCommandError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error("{}", with_advice(.0))]
    Status(#[from] status::StatusError),
    #[error(transparent)]
    Output(#[from] NotPrinted),
}

/// Returns the error of reading the state, with advice.
pub(crate) fn with_advice(error: &status::StatusError) -> String {
    match error {
        status::StatusError::Fault(error) => advice::error(error),
        error => error.to_string(),
    }
}

/// Shows one tunnel or all. The exit status is that of the worst state.
pub(crate) fn main(order: &StatusOrder, arguments: &[OsString]) -> ExitCode {
    match run(order, arguments) {
        Ok(state) => state.exit_status().into(),
        Err(StatusCommandError::Output(error)) if error.is_broken_pipe() => UNKNOWN.into(),
        Err(failure) => crate::complain(&failure, UNKNOWN),
    }
}

fn run(order: &StatusOrder, arguments: &[OsString]) -> Result<State, StatusCommandError> {
    root::require(Compatibility::Taupe, arguments)?;
    let status = look(order.file.as_deref())?;
    let text = if order.json {
        status.json()
    } else {
        print::text(&status, Paint::of_stdout())
    };
    console::print(text.as_bytes())?;
    // A missing tunnel counts as down.
    Ok(status.state.unwrap_or(State::Down))
}

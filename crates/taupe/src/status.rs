//! `taupe status`: shows tunnels as text or as JSON.

mod peers;
mod print;

#[cfg(feature = "top")]
pub(crate) use print::{NO_TUNNEL, mode};

use crate::arguments::StatusOrder;
use crate::console::{self, NotPrinted};
use crate::paint::Paint;
use crate::repeat::repeat;
use crate::root;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use taupe_adapter::Compatibility;
use taupe_inspect::advice;
use taupe_inspect::json;
use taupe_inspect::status::{self, State, look};

/// Exit status if no state is known, and for wrong usage.
pub(crate) const UNKNOWN: u8 = 3;

/// Reason why no state can be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusCommandError {
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
    let Some(every) = order.watch else {
        let status = look(order.file.as_deref())?;
        let text = match order.json {
            true => status.json(),
            false => text(&status, order),
        };
        console::print(text.as_bytes())?;
        // A missing tunnel counts as down.
        return Ok(status.state.unwrap_or(State::Down));
    };
    let read = || look(order.file.as_deref());
    let mut state = None;
    let handle = |status: Result<status::Status, &status::StatusError>| {
        let Ok(status) = status else { return Ok(()) };
        let text = match (order.json, io::stdout().is_terminal()) {
            (true, _) => json::line(&status),
            // From the top of the screen, and nothing below (ECMA-48 sections 8.3.21 and 8.3.39).
            (false, true) => format!("\x1b[H\x1b[J{}", text(&status, order)),
            (false, false) => text(&status, order) + "\n",
        };
        state = status.state;
        console::print(text.as_bytes())
    };
    repeat(every, read()?, read, with_advice, handle)?;
    Ok(state.unwrap_or(State::Down))
}

/// Returns the state of all tunnels whose names are wanted, as text or JSON, and the worst state.
pub(crate) fn of_all(
    json: bool,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<(State, String), StatusCommandError> {
    let mut status = look(None)?;
    status.tunnels.retain(|tunnel| is_wanted(&tunnel.interface));
    status.state = status.tunnels.iter().map(|tunnel| tunnel.state).max();
    let text = match json {
        true => status.json(),
        false => print::text(&status, false, Paint::of_stdout()),
    };
    Ok((status.state.unwrap_or(State::Down), text))
}

fn text(status: &status::Status, order: &StatusOrder) -> String {
    print::text(status, order.all_peers, Paint::of_stdout())
}

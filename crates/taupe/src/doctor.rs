//! `taupe doctor`: prints the checks of this system as text or as JSON.

use crate::arguments::DoctorOrder;
use crate::console::{NotPrinted, print};
use crate::paint::{Colour, Paint};
use crate::progress_line::LongCommand;
use std::fmt::Write as _;
use std::process::ExitCode;
use taupe_inspect::doctor::{self, DoctorReport, Outcome, examine};
use taupe_inspect::json;

/// Reason why no checks were made.
#[derive(Debug, thiserror::Error)]
enum DoctorCommandError {
    #[error(transparent)]
    Doctor(#[from] doctor::DoctorError),
    #[error(transparent)]
    Output(#[from] NotPrinted),
}

/// Runs all checks and prints the results.
pub(crate) fn main(order: &DoctorOrder) -> ExitCode {
    match run(order) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => crate::FAILED.into(),
        Err(DoctorCommandError::Output(error)) if error.is_broken_pipe() => crate::FAILED.into(),
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &DoctorOrder) -> Result<usize, DoctorCommandError> {
    let _long = LongCommand::begin("examining this system");
    let report = examine(order.file.as_deref(), order.fresh)?;
    let text = match order.json {
        true => json::text(&report),
        false => text(&report, Paint::of_stdout()),
    };
    print(text.as_bytes())?;
    Ok(report.fails)
}

/// Formats checks as text.
pub(crate) fn text(report: &DoctorReport, paint: Paint) -> String {
    let mut text = String::new();
    for check in &report.checks {
        let (word, colour) = match check.result {
            Outcome::Ok => ("ok  ", Colour::Green),
            Outcome::Unknown => ("?   ", Colour::Yellow),
            Outcome::Warn => ("warn", Colour::Yellow),
            Outcome::Fail => ("FAIL", Colour::Red),
        };
        let word = paint.paint(word, colour);
        let _ = writeln!(text, "{word}  {:<20} {}", check.name, check.text);
        if let Some(fix) = &check.fix {
            let _ = writeln!(text, "      {:<20} fix: {fix}", "");
        }
    }
    text
}

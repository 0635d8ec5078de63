//! What a person is told by a program of the laboratory.
//!
//! Unlike `print!` and `eprint!`, nothing here panics when nobody reads it any more, as
//! after `| head`: what a run leaves is its report, not what it prints.

use std::fmt::Display;
use std::io::{Write, stderr, stdout};

/// Prints to standard output, at once.
pub fn print(text: impl Display) {
    let mut stdout = stdout().lock();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints a line to standard error.
pub fn warn(line: impl Display) {
    let _ = stderr().write_all(format!("{line}\n").as_bytes());
}

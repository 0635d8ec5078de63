//! Output of the lab's programs for people.
//!
//! Unlike `print!` and `eprint!`, these functions do not panic if the reader is gone, as after `|
//! head`. The result of a run is its report, not its output.

use std::fmt::Display;
use std::io::{Write, stderr, stdout};

/// Prints to standard output, and flushes it.
pub fn print(text: impl Display) {
    let mut stdout = stdout().lock();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints a line to standard error.
pub fn warn(line: impl Display) {
    let _ = stderr().write_all(format!("{line}\n").as_bytes());
}

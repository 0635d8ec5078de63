//! Messages to the user.

use crate::progress_line;
use std::fmt::Display;
use std::io::{self, Write as _};

/// Prints a line to standard error in a single write, because hooks print there too. `eprintln`
/// would panic if standard error is a closed pipe.
pub(crate) fn say(line: &dyn Display) {
    progress_line::erase();
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct NotPrinted(#[source] io::Error);

impl NotPrinted {
    /// True if the reader closed the pipe early, as `head` does. This needs no error message.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Prints to standard output and flushes it. Data that remains in the buffer would be lost without
/// an error when the process ends.
pub(crate) fn print(text: &[u8]) -> Result<(), NotPrinted> {
    print_by(|| io::stdout().write_all(text))
}

/// Like [`print()`], with another function that writes to standard output.
pub(crate) fn print_by(write: impl FnOnce() -> io::Result<()>) -> Result<(), NotPrinted> {
    progress_line::erase();
    let printed = write().and_then(|()| io::stdout().flush());
    printed.map_err(NotPrinted)
}

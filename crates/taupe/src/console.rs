//! What a person is told, and how they stop what goes on.

mod interrupt;
#[cfg(target_os = "linux")]
mod progress;

use std::fmt::Display;
use std::io::{self, Write as _};

#[cfg(target_os = "linux")]
pub(crate) use interrupt::Asked;
pub(crate) use interrupt::Interrupt;
#[cfg(target_os = "linux")]
pub(crate) use progress::{Colour, Console, Paint};

/// Prints a line to standard error, in one piece, as hooks print there too. Not
/// `eprintln`, which panics when that is a closed pipe.
pub(crate) fn say(line: &dyn Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// What was asked for could not be handed over.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct NotPrinted(#[source] io::Error);

impl NotPrinted {
    /// Who would have read it has had enough, as `head` has: no reason to complain.
    pub(crate) fn is_unread(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Prints to standard output; all of it, as what is left in a buffer at the end
/// of the process is lost without a word.
pub(crate) fn print(text: &[u8]) -> Result<(), NotPrinted> {
    print_by(|| io::stdout().write_all(text))
}

/// As [`print()`], by something else that writes to standard output.
pub(crate) fn print_by(write: impl FnOnce() -> io::Result<()>) -> Result<(), NotPrinted> {
    let printed = write().and_then(|()| io::stdout().flush());
    printed.map_err(NotPrinted)
}

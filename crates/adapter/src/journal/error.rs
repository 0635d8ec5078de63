//! Errors of the journal.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::header::VERSION;
use super::lock::TURN;

/// Error of opening or writing a journal.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A file cannot be accessed.
    #[error("cannot {what} {}: {source}; what a tunnel changes is written down there", .path.display())]
    Io {
        /// The attempt, as a verb and its object.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process is changing the tunnel.
    #[error("{interface} is being brought up or down by another process{}; wait for it", by(.process))]
    Busy {
        /// The interface.
        interface: String,
        /// The other process, if it has written its id.
        process: Option<u32>,
    },
    /// Bringing up other tunnels takes too long.
    #[error(
        "other tunnels are being brought up, and are not done after {} seconds; try again, or see \
         who holds {}", TURN.as_secs(), .0.display()
    )]
    Crowded(PathBuf),
    /// Another version of Taupe wrote the journal.
    #[error(
        "{} was written by another version of taupe (format {found}, this one knows {VERSION}); \
         take the tunnel down with that version", .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version of its format.
        found: u32,
    },
    /// The file is not a journal.
    #[error(
        "{}, line {line}: this is no record of a step of the tunnel ({reason})", .path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The error in it.
        reason: String,
    },
}

fn by(process: &Option<u32>) -> String {
    process.map_or_else(String::new, |id| format!(" ({id})"))
}

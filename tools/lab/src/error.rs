//! What can go wrong in the laboratory, and where.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Short for a result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step of a system test failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program could not be started at all.
    #[error("`{command}` in {place} could not be started: {source}")]
    Start {
        /// The command line.
        command: String,
        /// The host (or guest) it was meant for.
        place: String,
        /// What the system said.
        source: io::Error,
    },

    /// A program ran and reported failure.
    #[error("`{command}` in {place} ended with {status}\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// The host (or guest) it ran in.
        place: String,
        /// Its exit status, in words.
        status: String,
        /// What it printed, errors first.
        output: String,
    },

    /// A system call or a file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, to what.
        what: String,
        /// What the system said.
        source: io::Error,
    },

    /// Something that was waited for did not come.
    #[error("{what}: not within {limit:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
    },

    /// A program of the laboratory is not installed.
    #[error("{name} is not at {}: {remedy}", path.display())]
    Missing {
        /// The program's name.
        name: String,
        /// Where it was looked for.
        path: PathBuf,
        /// How to get it.
        remedy: String,
    },

    /// A file or an answer did not have the form it should have.
    #[error("{what} cannot be read: {why}")]
    Malformed {
        /// Which file or answer.
        what: String,
        /// What is wrong with it.
        why: String,
    },

    /// What was observed is not what was expected.
    #[error("{0}")]
    Unmet(String),
}

impl Error {
    /// For `map_err`: wraps a system error with what was being done.
    pub fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Io {
            what,
            source: source.into(),
        }
    }

    /// The first line and the last, which says why where a program's output is included:
    /// a reason as it fits into a table.
    pub fn one_line(&self) -> String {
        let text = self.to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        match lines.next_back() {
            Some(last) => format!("{first}: {last}"),
            None => first.to_owned(),
        }
    }

    /// An expectation that was not met.
    pub fn unmet(what: impl Into<String>) -> Self {
        Self::Unmet(what.into())
    }
}

/// Leaves the function with [`Error::Unmet`] unless the condition holds.
///
/// The message is formatted as by `format!` and should hold what was seen.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Error::unmet(format!($($message)+)));
        }
    };
}

//! Errors of the lab.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a step of a system test failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program could not be started.
    #[error("`{command}` in {place} could not be started: {source}")]
    Start {
        /// The command line.
        command: String,
        /// The host (or guest) it was meant for.
        place: String,
        /// The system's error.
        source: io::Error,
    },

    /// A program ran and failed.
    #[error("`{command}` in {place} ended with {status}\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// The host (or guest) it ran in.
        place: String,
        /// Its exit status as text.
        status: String,
        /// Its output, standard error first.
        output: String,
    },

    /// A system call or a file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The system's error.
        source: io::Error,
    },

    /// An awaited event did not happen in time.
    #[error("{what}: not within {limit:?}")]
    Timeout {
        /// The awaited event.
        what: String,
        /// The time limit.
        limit: Duration,
    },

    /// A program of the lab is not installed.
    #[error("{name} is not at {}: {remedy}", path.display())]
    Missing {
        /// The program's name.
        name: String,
        /// The expected path.
        path: PathBuf,
        /// The way to install it.
        remedy: String,
    },

    /// A file or an answer is malformed.
    #[error("{what} cannot be read: {why}")]
    Malformed {
        /// The file or answer.
        what: String,
        /// The defect.
        why: String,
    },

    /// An observation differs from the expectation.
    #[error("{0}")]
    Unmet(String),
}

impl Error {
    /// For `map_err`: wraps a system error with the operation.
    pub fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Io {
            what,
            source: source.into(),
        }
    }

    /// Returns the first and the last line as a reason for a table; if the error includes a
    /// program's output, the last line names the cause.
    pub fn one_line(&self) -> String {
        let text = self.to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        match lines.next_back() {
            Some(last) => format!("{first}: {last}"),
            None => first.to_owned(),
        }
    }

    /// Creates [`Error::Unmet`].
    pub fn unmet(what: impl Into<String>) -> Self {
        Self::Unmet(what.into())
    }
}

/// Returns [`Error::Unmet`] from the function unless the condition holds.
///
/// The message is formatted as by `format!` and should contain the observed value.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Error::unmet(format!($($message)+)));
        }
    };
}

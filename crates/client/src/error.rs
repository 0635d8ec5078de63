//! Errors of access to a device.

use std::io;

use taupe_uapi::AnswerError;
use thiserror::Error;

use crate::errno::{self, errno_text, system_text};

/// Reason why a device could not be read or changed. [`Error::errno`] returns the error number that
/// `wg` prints for it.
#[derive(Debug, Error)]
pub enum Error {
    /// There is no WireGuard device of that name.
    #[error("there is no such device")]
    NoDevice,
    /// No process in user space runs the device, and the kernel lacks WireGuard.
    #[error(
        "there is no such device: no program in user space runs one of that name, and the kernel \
         has no WireGuard"
    )]
    NoKernelSupport,
    /// The connection failed.
    #[error("cannot talk to the device: {0}")]
    Io(io::Error),
    /// The device's process exists but does not answer.
    #[error("the device's process does not answer: it may be stopped (SIGSTOP) or overloaded")]
    Silent,
    /// The answer is malformed.
    #[error("the device's answer is truncated or malformed")]
    Malformed,
    /// The request has post-quantum keys, but the device belongs to the kernel or another program.
    #[error(
        "this device has no post-quantum handshakes: the kernel runs it, or a program without them"
    )]
    NoPostQuantum,
    /// The device refused the request.
    #[error("{}{}", errno_text(*.errno), with_reason(.reason.as_deref()))]
    Refused {
        /// The error number. Positive, unless the device sends the wrong sign.
        errno: i32,
        /// The device's explanation, if it gives one.
        reason: Option<String>,
    },
}

impl Error {
    /// Returns the error number that `wg` reports for this error (`errno(3)`; on Windows, Linux's
    /// number or the system's own).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoDevice => errno::NODEV,
            Self::NoKernelSupport => errno::PROTONOSUPPORT,
            Self::Io(error) => error.raw_os_error().unwrap_or(errno::IO),
            Self::Silent => errno::TIMEDOUT,
            Self::NoPostQuantum => errno::OPNOTSUPP,
            Self::Malformed => errno::PROTO,
            Self::Refused { errno, .. } => *errno,
        }
    }

    /// Returns the text of [`Self::errno`], as `strerror(3)` has it.
    #[must_use]
    pub fn errno_text(&self) -> String {
        match self {
            Self::Io(error) if error.raw_os_error().is_some() => system_text(error),
            _ => errno_text(self.errno()),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Silent,
            _ => Self::Io(error),
        }
    }
}

impl From<AnswerError> for Error {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Malformed => Self::Malformed,
            AnswerError::Refused { errno, reason } => Self::Refused { errno, reason },
        }
    }
}

fn with_reason(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

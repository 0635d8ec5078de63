//! Errors of access to a device.

use std::io;

use taupe_uapi::AnswerError;
use thiserror::Error;

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
    #[error("its process does not answer: it may be stopped (SIGSTOP), frozen or overloaded")]
    Silent,
    /// The answer is malformed.
    #[error("the device's answer is cut short or malformed")]
    Malformed,
    /// The request has post-quantum keys, but the device belongs to the kernel or another program.
    #[error(
        "this device has no post-quantum handshakes: it is run by the kernel or by another program \
         than taupe; bring the tunnel up with `taupe up`, or take the post-quantum keys away"
    )]
    NoPostQuantum,
    /// The device refused the request.
    #[error("{}{}", text(*.errno), because(.reason.as_deref()))]
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
            Self::NoDevice => number::NODEV,
            Self::NoKernelSupport => number::PROTONOSUPPORT,
            Self::Io(error) => error.raw_os_error().unwrap_or(number::IO),
            Self::Silent => number::TIMEDOUT,
            Self::NoPostQuantum => number::OPNOTSUPP,
            Self::Malformed => number::PROTO,
            Self::Refused { errno, .. } => *errno,
        }
    }

    /// Returns the text of [`Self::errno`], as `strerror(3)` has it.
    #[must_use]
    pub fn errno_text(&self) -> String {
        match self {
            Self::Io(error) if error.raw_os_error().is_some() => system_text(error),
            _ => text(self.errno()),
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

/// Returns the text of an error number, as `strerror(3)` has it.
#[cfg(unix)]
#[must_use]
pub fn text(errno: i32) -> String {
    system_text(&io::Error::from_raw_os_error(errno))
}

/// Returns Linux's text of a Linux error number. Devices answer with these numbers on Windows too.
#[cfg(not(unix))]
#[must_use]
pub fn text(errno: i32) -> String {
    let known = match errno {
        number::IO => "Input/output error",
        number::NODEV => "No such device",
        22 => "Invalid argument",
        number::PROTO => "Protocol error",
        number::PROTONOSUPPORT => "Protocol not supported",
        number::OPNOTSUPP => "Operation not supported",
        98 => "Address already in use",
        number::TIMEDOUT => "Connection timed out",
        _ => return format!("error {errno}"),
    };
    known.to_owned()
}

/// Returns the system's text of an error.
pub(crate) fn system_text(error: &io::Error) -> String {
    let number = error.raw_os_error().unwrap_or_default();
    let text = error.to_string();
    match text.strip_suffix(&format!(" (os error {number})")) {
        Some(text) => text.to_owned(),
        None => text,
    }
}

/// Error numbers: the system's own on Linux, Linux's elsewhere.
#[cfg(target_os = "linux")]
mod number {
    use rustix::io::Errno;

    pub(super) const NODEV: i32 = Errno::NODEV.raw_os_error();
    pub(super) const IO: i32 = Errno::IO.raw_os_error();
    pub(super) const PROTO: i32 = Errno::PROTO.raw_os_error();
    pub(super) const PROTONOSUPPORT: i32 = Errno::PROTONOSUPPORT.raw_os_error();
    pub(super) const OPNOTSUPP: i32 = Errno::OPNOTSUPP.raw_os_error();
    pub(super) const TIMEDOUT: i32 = Errno::TIMEDOUT.raw_os_error();
}
#[cfg(not(target_os = "linux"))]
mod number {
    pub(super) const NODEV: i32 = 19;
    pub(super) const IO: i32 = 5;
    pub(super) const PROTO: i32 = 71;
    pub(super) const PROTONOSUPPORT: i32 = 93;
    pub(super) const OPNOTSUPP: i32 = 95;
    pub(super) const TIMEDOUT: i32 = 110;
}

fn because(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

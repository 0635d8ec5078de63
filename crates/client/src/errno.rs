//! Error numbers and their texts.

use std::io;

pub(crate) use number::{IO, NODEV, OPNOTSUPP, PROTO, PROTONOSUPPORT, TIMEDOUT};

/// Returns the text of an error number, as `strerror(3)` has it.
#[cfg(unix)]
#[must_use]
pub fn errno_text(errno: i32) -> String {
    system_text(&io::Error::from_raw_os_error(errno))
}

/// Returns Linux's text of a Linux error number. Devices answer with these numbers on Windows too.
#[cfg(not(unix))]
#[must_use]
pub fn errno_text(errno: i32) -> String {
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

    pub(crate) const NODEV: i32 = Errno::NODEV.raw_os_error();
    pub(crate) const IO: i32 = Errno::IO.raw_os_error();
    pub(crate) const PROTO: i32 = Errno::PROTO.raw_os_error();
    pub(crate) const PROTONOSUPPORT: i32 = Errno::PROTONOSUPPORT.raw_os_error();
    pub(crate) const OPNOTSUPP: i32 = Errno::OPNOTSUPP.raw_os_error();
    pub(crate) const TIMEDOUT: i32 = Errno::TIMEDOUT.raw_os_error();
}
#[cfg(not(target_os = "linux"))]
mod number {
    pub(crate) const NODEV: i32 = 19;
    pub(crate) const IO: i32 = 5;
    pub(crate) const PROTO: i32 = 71;
    pub(crate) const PROTONOSUPPORT: i32 = 93;
    pub(crate) const OPNOTSUPP: i32 = 95;
    pub(crate) const TIMEDOUT: i32 = 110;
}

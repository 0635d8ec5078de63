//! Linux's error numbers, with which devices answer on every system, and their texts.

use std::{env, io};

pub(crate) const IO: i32 = 5;
pub(crate) const NODEV: i32 = 19;
pub(crate) const PROTO: i32 = 71;
pub(crate) const PROTONOSUPPORT: i32 = 93;
pub(crate) const OPNOTSUPP: i32 = 95;
pub(crate) const TIMEDOUT: i32 = 110;

/// Returns the text of an error number: the system's (`strerror(3)`) on Unix, Linux's elsewhere.
#[must_use]
pub fn errno_text(errno: i32) -> String {
    if env::consts::FAMILY == "unix" {
        return system_text(&io::Error::from_raw_os_error(errno));
    }
    let known = match errno {
        IO => "Input/output error",
        NODEV => "No such device",
        22 => "Invalid argument",
        PROTO => "Protocol error",
        PROTONOSUPPORT => "Protocol not supported",
        OPNOTSUPP => "Operation not supported",
        98 => "Address already in use",
        TIMEDOUT => "Connection timed out",
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

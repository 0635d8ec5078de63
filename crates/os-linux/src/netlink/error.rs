//! Error of a netlink request.

use std::{fmt, io};

pub(super) type Result<T> = std::result::Result<T, NetlinkError>;

/// A request that failed, with its subject and the reason.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}{}", Reason(.reason.as_deref()))]
pub struct NetlinkError {
    /// The request, such as `add the route 192.0.2.0/24 by interface 7`.
    pub what: String,
    /// The kernel's own explanation, if it gave one.
    pub reason: Option<String>,
    /// The error.
    pub source: io::Error,
}

impl NetlinkError {
    /// Returns the kernel's error number, or `None` if the kernel was not asked or its answer could
    /// not be read.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

struct Reason<'a>(Option<&'a str>);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

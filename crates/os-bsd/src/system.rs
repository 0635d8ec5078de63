//! The operating systems.

use std::fmt;

/// An operating system whose kernel reads or writes the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    /// FreeBSD 14 or 15.
    FreeBsd,
    /// macOS 13 or newer.
    MacOs,
}

impl System {
    /// Both systems.
    pub const ALL: [Self; 2] = [Self::FreeBsd, Self::MacOs];

    /// The system that this program is for.
    #[cfg(target_os = "freebsd")]
    pub const HERE: Self = Self::FreeBsd;

    /// The system that this program is for.
    #[cfg(target_os = "macos")]
    pub const HERE: Self = Self::MacOs;
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FreeBsd => "FreeBSD",
            Self::MacOs => "macOS",
        })
    }
}

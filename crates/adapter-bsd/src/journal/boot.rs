//! The identity of a boot.

use serde::{Deserialize, Serialize};

/// The identity of a boot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BootId {
    /// macOS: `kern.bootsessionuuid`.
    Session(String),
    /// FreeBSD: the time in `kern.boottime`, in seconds since 1970. It moves if the clock is set.
    Started(u64),
}

/// Difference in seconds up to which two times are those of one boot: clocks are set by less, and a
/// machine is restarted later. FreeBSD also empties /var/run at each boot.
const SAME: u64 = 60;

impl BootId {
    /// Returns true if both are of the same boot.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Started(a), Self::Started(b)) => a.abs_diff(*b) <= SAME,
            (a, b) => a == b,
        }
    }

    /// Parses the value that sysctl(8) prints for `kern.boottime`, such as
    /// `{ sec = 1700000000, usec = 0 } Tue Nov 14 22:13:20 2023`.
    #[must_use]
    pub fn parse_boot_time(printed: &str) -> Option<Self> {
        let (_, rest) = printed.split_once("sec = ")?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest.get(..end)?.parse().ok().map(Self::Started)
    }
}

#[cfg(test)]
mod tests {
    use super::BootId;

    #[test]
    fn a_boot_is_recognised_after_the_clock_was_set() {
        let printed = "{ sec = 1700000000, usec = 250 } Tue Nov 14 22:13:20 2023\n";
        let boot = BootId::parse_boot_time(printed).unwrap();
        assert_eq!(boot, BootId::Started(1_700_000_000));
        assert!(boot.is_same(&BootId::Started(1_700_000_030)));
        assert!(!boot.is_same(&BootId::Started(1_700_000_300)));
        assert_eq!(BootId::parse_boot_time("nonsense"), None);
        let session = BootId::Session("A".to_owned());
        assert!(session.is_same(&session) && !session.is_same(&BootId::Session("B".to_owned())));
    }
}

//! The identity of a boot.

use serde::{Deserialize, Serialize};

/// The identity of a boot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BootId {
    /// A random number of the boot: `kern.bootsessionuuid` of macOS, `kern.boot_id` of FreeBSD.
    Session(String),
    /// FreeBSD without such a number: the time in `kern.boottime`, in seconds since 1970. It moves if
    /// the clock is set.
    Started(u64),
}

/// Difference in seconds up to which two times are those of one boot. FreeBSD also empties /var/run
/// at each boot.
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

    /// Parses the value that sysctl(8) prints for `kern.boot_id` with `-x`, such as
    /// `Format: Length:16 Dump:0x4c8609698ad1a11cdc00cf6eb7d954e1`. Returns `None` if bytes are missing.
    #[must_use]
    pub fn parse_boot_number(printed: &str) -> Option<Self> {
        let (_, number) = printed.trim().split_once("Length:16 Dump:0x")?;
        let is_complete = number.len() == 32 && number.bytes().all(|it| it.is_ascii_hexdigit());
        is_complete.then(|| Self::Session(number.to_owned()))
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

    /// A machine without a battery sets its clock by years after `up`.
    #[test]
    fn the_number_of_a_boot_does_not_depend_on_the_clock() {
        let printed = "Format: Length:16 Dump:0x4c8609698ad1a11cdc00cf6eb7d954e1\n";
        let boot = BootId::parse_boot_number(printed).unwrap();
        let number = "4c8609698ad1a11cdc00cf6eb7d954e1";
        assert_eq!(boot, BootId::Session(number.to_owned()));
        for other in ["", "Format: Length:16 Dump:0x4c86...", "Format: Length:0"] {
            assert_eq!(BootId::parse_boot_number(other), None);
        }
    }

    #[test]
    fn a_time_of_boot_may_differ_by_some_seconds() {
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

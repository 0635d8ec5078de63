//! Names of TUN devices that each system permits.

use std::fmt;

use crate::{System, interface::InterfaceName};

/// A permitted name for a new TUN device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// FreeBSD: the device is created as `tunN` and renamed.
    Renamed(InterfaceName),
    /// macOS: a utun device, which cannot be renamed.
    Utun(UtunUnit),
}

/// The number of a utun device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UtunUnit(Option<u16>);

/// Error of a name for a device. Its text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Not a name of a utun device.
    #[error(
        "macOS cannot name a TUN device {0:?}: use utun, or utun and a number from 0 to 32767 without leading zeros"
    )]
    NotUtun(String),
    /// Not a name of an interface.
    #[error(
        "FreeBSD cannot name a TUN device {0:?}: use 1 to 15 bytes without '/', ':', '%' or blanks"
    )]
    NotAName(String),
}

impl DeviceName {
    /// Parses the name of a device that is to be created.
    ///
    /// # Errors
    ///
    /// [`NameError`] if the system does not permit the name.
    pub fn parse(system: System, name: &str) -> Result<Self, NameError> {
        match system {
            System::FreeBsd => parse_renamed(name).map(Self::Renamed),
            System::MacOs => UtunUnit::parse(name).map(Self::Utun),
        }
    }
}

/// Parses a new name on FreeBSD. `SIOCSIFNAME` takes any (`ifhwioctl` in `sys/net/if.c`). A name
/// with '/' could not be part of a path to a socket, ':' and blanks separate names in tools, and
/// '%' begins the zone of an address.
fn parse_renamed(name: &str) -> Result<InterfaceName, NameError> {
    let is_unusable = |c: char| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control();
    InterfaceName::new(name)
        .filter(|_| !name.contains(is_unusable) && name != "." && name != "..")
        .ok_or_else(|| NameError::NotAName(name.to_owned()))
}

impl UtunUnit {
    /// Parses `utun`, for which the kernel chooses a number, or `utunN`. The kernel keeps the number
    /// of an interface in a `short` (`ifnet_allocate_extended` in `bsd/net/kpi_interface.c` of xnu).
    ///
    /// # Errors
    ///
    /// [`NameError`] for another name.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        let refused = || NameError::NotUtun(name.to_owned());
        let digits = name.strip_prefix("utun").ok_or_else(refused)?;
        if digits.is_empty() {
            return Ok(Self(None));
        }
        // The kernel writes the number in its shortest form, so another one would name another
        // interface. `parse` permits a sign.
        digits
            .parse()
            .ok()
            .filter(|&number: &u16| number <= 32_767 && number.to_string() == digits)
            .map(|number| Self(Some(number)))
            .ok_or_else(refused)
    }

    /// Returns the unit for `connect`: one more than the number in the name, or 0 if the kernel is
    /// to choose.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0.map_or(0, |number| u32::from(number) + 1)
    }
}

impl fmt::Display for UtunUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "utun{number}"),
            None => f.write_str("utun"),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Renamed(name) => name.fmt(f),
            Self::Utun(unit) => unit.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macos_permits_utun_with_or_without_a_number() {
        let unit = |name| UtunUnit::parse(name).map(UtunUnit::number);
        assert_eq!(unit("utun"), Ok(0));
        assert_eq!(unit("utun0"), Ok(1));
        assert_eq!(unit("utun32767"), Ok(32_768));
        for name in ["utun", "utun0", "utun32767"] {
            let parsed = DeviceName::parse(System::MacOs, name).unwrap();
            assert_eq!(parsed.to_string(), name);
        }
        for name in [
            "",
            "wg0",
            "utun01",
            "utun-1",
            "utun+1",
            "utun 1",
            "utun32768",
            "utun4294967295",
            "Utun0",
        ] {
            let error = DeviceName::parse(System::MacOs, name).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "macOS cannot name a TUN device {name:?}: use utun, or utun and a number from 0 to 32767 without leading zeros"
                )
            );
        }
    }

    #[test]
    fn freebsd_permits_names_of_15_bytes() {
        for name in ["wg0", "tun7", "a-long.name_015", "t\u{fc}n"] {
            let expected = InterfaceName::new(name).map(DeviceName::Renamed);
            assert_eq!(DeviceName::parse(System::FreeBsd, name).ok(), expected);
        }
        for name in [
            "",
            "0123456789abcdef",
            "a/b",
            "a:b",
            "a%b",
            "a b",
            "a\nb",
            "a\0b",
            ".",
            "..",
        ] {
            let error = DeviceName::parse(System::FreeBsd, name).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "FreeBSD cannot name a TUN device {name:?}: use 1 to 15 bytes without '/', ':', '%' or blanks"
                )
            );
        }
    }
}

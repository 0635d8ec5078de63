//! Names of tunnels in requests.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest name of an interface (`IFNAMSIZ` less its NUL).
const MAX_NAME: usize = 15;

/// The name of a tunnel and its interface, by `wg-quick`'s rules: 1 to 15 of `a-z A-Z 0-9 _ = + . -`. It
/// can be part of a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TunnelName(String);

/// Error of a text that is not the name of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "the name of a tunnel has 1 to {MAX_NAME} of a-z, A-Z, 0-9 and _=+.-, and does not begin with . or -"
)]
pub struct InvalidName;

impl TunnelName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TunnelName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_=+.-".contains(&byte);
        // A leading dot is a hidden file or a folder, a leading dash an option. The others mean several
        // interfaces to `wg` or the kernel.
        let is_valid = (1..=MAX_NAME).contains(&text.len())
            && text.bytes().all(is_allowed)
            && !text.starts_with(['.', '-'])
            && !matches!(text, "all" | "default" | "interfaces");
        is_valid.then(|| Self(text.to_owned())).ok_or(InvalidName)
    }
}

impl TryFrom<String> for TunnelName {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<TunnelName> for String {
    fn from(name: TunnelName) -> Self {
        name.0
    }
}

impl fmt::Display for TunnelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::TunnelName;

    #[test]
    fn names_are_those_of_interfaces_that_can_be_files() {
        for name in [
            "home",
            "u-home",
            "wg0",
            "a",
            "a.b_c=d+e-f",
            "fifteen-letters",
        ] {
            assert!(name.parse::<TunnelName>().is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "-x",
            ".hidden",
            "sixteen-letters-",
            "a b",
            "a\nb",
            "a\0b",
            "a%d",
            "a:b",
            "ü",
            "all",
            "default",
            "interfaces",
        ] {
            assert!(name.parse::<TunnelName>().is_err(), "{name:?}");
            let json = serde_json::to_string(name).expect("JSON");
            assert!(
                serde_json::from_str::<TunnelName>(&json).is_err(),
                "{name:?}"
            );
        }
        let long = "x".repeat(1 << 20);
        assert!(long.parse::<TunnelName>().is_err());
    }
}

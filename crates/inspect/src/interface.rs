//! Names of network interfaces.

use crate::system::LONGEST_NAME;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A name that Linux accepts for an interface (`dev_valid_name` in net/core/dev.c). A `%` is
/// refused: the kernel would replace `%d` with a free number, and the caller would not learn the
/// result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct InterfaceName(String);

/// Reason why a name is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NameError {
    #[error("an interface's name has at least 1 byte")]
    Empty,
    #[error("an interface's name has at most {LONGEST_NAME} bytes, this one has {0}")]
    Long(usize),
    #[error("an interface cannot be called `.` or `..`")]
    Directory,
    #[error(
        "an interface's name cannot contain {0:?}; '/', ':', '%', blanks and control characters \
         are not allowed"
    )]
    Character(char),
    #[error("no tunnel can be called {name}: {meaning}")]
    Reserved {
        name: String,
        /// Meaning that the name already has.
        meaning: &'static str,
    },
}

impl InterfaceName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Refuses a name that commands or the kernel use for several interfaces, because a tunnel of
    /// that name could not be created or shown.
    ///
    /// # Errors
    /// [`NameError::Reserved`].
    pub fn not_reserved(self) -> Result<Self, NameError> {
        let meaning = match self.as_str() {
            "all" => "in `wg show` and in /proc/sys/net, this name means all interfaces",
            "default" => "in /proc/sys/net, this name means all future interfaces",
            "interfaces" => "in `wg show`, this name means the list of all interfaces",
            _ => return Ok(self),
        };
        Err(NameError::Reserved {
            name: self.0,
            meaning,
        })
    }

    /// Reads the name of an interface that is to be created. Only `taupe up` refuses `interfaces`:
    /// the kernel and other programs accept such an interface.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn for_new(text: &str) -> Result<Self, NameError> {
        let name = text.parse::<Self>()?;
        match name.as_str() {
            "interfaces" => Ok(name),
            _ => name.not_reserved(),
        }
    }
}

impl From<InterfaceName> for String {
    fn from(name: InterfaceName) -> Self {
        name.0
    }
}

impl TryFrom<String> for InterfaceName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl FromStr for InterfaceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refused = |c: char| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control();
        match text {
            "" => Err(NameError::Empty),
            "." | ".." => Err(NameError::Directory),
            _ if text.len() > LONGEST_NAME => Err(NameError::Long(text.len())),
            _ => match text.chars().find(|&c| refused(c)) {
                Some(character) => Err(NameError::Character(character)),
                None => Ok(Self(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{InterfaceName, NameError};

    #[test]
    fn names_at_the_boundaries() {
        let longest = "a".repeat(15);
        for good in [
            "w",
            "wg0",
            "wg-quick_1.2",
            "...",
            "-f",
            "ünïc",
            longest.as_str(),
        ] {
            let name: InterfaceName = good.parse().expect(good);
            assert_eq!(name.to_string(), good);
        }
        let long = "a".repeat(16);
        for (bad, why) in [
            ("", NameError::Empty),
            (".", NameError::Directory),
            ("..", NameError::Directory),
            (long.as_str(), NameError::Long(16)),
            ("üüüüüüüü", NameError::Long(16)),
            ("a/b", NameError::Character('/')),
            ("a:1", NameError::Character(':')),
            ("wg%d", NameError::Character('%')),
            ("a b", NameError::Character(' ')),
            ("a\u{a0}", NameError::Character('\u{a0}')),
            ("a\n", NameError::Character('\n')),
            ("a\0b", NameError::Character('\0')),
            ("a\u{1b}", NameError::Character('\u{1b}')),
        ] {
            assert_eq!(bad.parse::<InterfaceName>(), Err(why), "{bad:?}");
        }
    }

    #[test]
    fn names_that_mean_several_interfaces_are_reserved() {
        for name in ["all", "default", "interfaces"] {
            // An existing interface of this name can be looked up.
            let known = name.parse::<InterfaceName>().expect(name);
            let error = known.not_reserved().expect_err(name);
            let start = format!("no tunnel can be called {name}: ");
            assert!(error.to_string().starts_with(&start), "{error}");
        }
        for name in ["all", "default"] {
            InterfaceName::for_new(name).expect_err(name);
        }
        for name in ["All", "interface", "interfaces", "al"] {
            InterfaceName::for_new(name).expect(name);
        }
    }
}

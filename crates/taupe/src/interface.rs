//! Names of network interfaces.

use std::fmt;
use std::str::FromStr;

/// `IFNAMSIZ` without the final zero byte.
const LONGEST: usize = 15;

/// A name that Linux gives an interface (`dev_valid_name` in net/core/dev.c),
/// and that means itself: a `%` would make the kernel count up to a free name,
/// which the caller would not learn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InterfaceName(String);

/// What is wrong with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NameError {
    #[error("an interface's name has at least 1 byte")]
    Empty,
    #[error("an interface's name has at most {LONGEST} bytes, this one has {0}")]
    Long(usize),
    #[error("an interface cannot be called `.` or `..`")]
    Directory,
    #[error(
        "an interface's name cannot contain {0:?}: neither '/', ':' and '%' nor blanks and \
         control characters are allowed"
    )]
    Character(char),
}

impl FromStr for InterfaceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refused = |c: char| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control();
        match text {
            "" => Err(NameError::Empty),
            "." | ".." => Err(NameError::Directory),
            _ if text.len() > LONGEST => Err(NameError::Long(text.len())),
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

#[cfg(test)]
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
}

//! Users.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ApplicationError, MAX_NAME};

/// A user.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum User {
    /// A user ID.
    Id(u32),
    /// A user name that is not resolved yet.
    Name(String),
}

impl FromStr for User {
    type Err = ApplicationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(ApplicationError::User);
        }
        let user = if text.bytes().all(|byte| byte.is_ascii_digit()) {
            // The largest number is not a user ID (POSIX: `(uid_t)-1`).
            let id = text.parse().ok().filter(|id| *id != u32::MAX);
            id.map(Self::Id)
        } else {
            let plausible =
                |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$' | '@' | '\\');
            let fits =
                !text.starts_with('-') && text.len() <= MAX_NAME && text.chars().all(plausible);
            fits.then(|| Self::Name(text.to_owned()))
        };
        user.ok_or(ApplicationError::User)
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl User {
    /// Replaces a name by its user ID. Returns false if `look_up` does not know the name.
    pub(super) fn resolve(&mut self, look_up: impl FnOnce(&str) -> Option<u32>) -> bool {
        if let Self::Name(name) = self {
            match look_up(name) {
                Some(id) => *self = Self::Id(id),
                None => return false,
            }
        }
        true
    }

    /// Returns true if the two are certainly different users. Names that are not resolved may be
    /// names of any user.
    #[must_use]
    pub fn is_other_than(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Id(one), Self::Id(other)) if one != other)
    }
}

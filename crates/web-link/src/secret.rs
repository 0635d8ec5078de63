//! Random values that admit a browser.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::io;
use subtle::ConstantTimeEq as _;

const LENGTH: usize = 16;

/// A random value of 128 bits, such as a token or a session. Its text is 32 hexadecimal digits.
#[derive(Clone)]
pub struct Secret([u8; LENGTH]);

impl Secret {
    /// Draws one.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; LENGTH];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    /// Parses one in a time that depends on its length only.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; LENGTH];
        let length = base16ct::lower::decode(text, &mut bytes).ok()?.len();
        (length == LENGTH).then_some(Self(bytes))
    }

    /// Compares two in constant time.
    #[must_use]
    pub fn is_equal(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns its text, which must not be logged.
    #[must_use]
    pub fn reveal(&self) -> String {
        base16ct::lower::encode_string(&self.0)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.reveal())
    }
}

impl<'a> Deserialize<'a> for Secret {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("no secret"))
    }
}

#[cfg(test)]
mod tests {
    use super::{LENGTH, Secret};

    #[test]
    fn a_secret_is_long_random_and_equal_to_its_text_only() {
        let (one, other) = (Secret::random(), Secret::random());
        let (one, other) = (one.expect("randomness"), other.expect("randomness"));
        assert!(!one.is_equal(&other));
        let text = one.reveal();
        assert_eq!(text.len(), 2 * LENGTH);
        assert!(Secret::parse(&text).expect("a secret").is_equal(&one));
        // Each single digit counts.
        for at in 0..2 * LENGTH {
            let changed = if text.as_bytes().get(at) == Some(&b'0') {
                "1"
            } else {
                "0"
            };
            let mut wrong = text.clone();
            wrong.replace_range(at..=at, changed);
            assert!(
                !Secret::parse(&wrong).expect("a secret").is_equal(&one),
                "{at}"
            );
        }
        let longer = format!("{text}00");
        for wrong in [
            "",
            "0",
            text.get(..2 * LENGTH - 2).unwrap_or_default(),
            &longer,
            &"g".repeat(2 * LENGTH),
        ] {
            assert!(Secret::parse(wrong).is_none(), "{wrong}");
        }
    }
}

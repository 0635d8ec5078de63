//! Keys as text: hex on the UAPI, base64 in files.

mod pq;

use base64ct::{Base64, Encoding as _};
use taupe_protocol::key::{KEY_LEN, PresharedKey, PrivateKey, PublicKey};
use thiserror::Error;
use zeroize::Zeroizing;

pub use pq::PqKeyError;

/// Encoding of a 32-byte key.
///
/// Both directions run in constant time for valid keys. Only a text that is refused is inspected
/// digit by digit, to describe its error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// 64 hexadecimal digits (RFC 4648 §8). Accepts either case; writes lower case.
    Hex,
    /// 44 characters, the last of which is `=` (RFC 4648 §4). The two padding bits of the 43rd must
    /// be zero (§3.5), so every key has exactly one text.
    Base64,
}

impl Encoding {
    /// Parses a public key.
    ///
    /// # Errors
    /// Returns [`KeyError`] if `text` is not exactly one key.
    pub fn public_key(self, text: &str) -> Result<PublicKey, KeyError> {
        self.decode(text).map(|bytes| PublicKey(*bytes))
    }

    /// Parses a private key. All zeros return `None`, because they stand for no key.
    ///
    /// # Errors
    /// Returns [`KeyError`] if `text` is not exactly one key.
    pub fn private_key(self, text: &str) -> Result<Option<PrivateKey>, KeyError> {
        self.decode(text).map(|bytes| PrivateKey::new(*bytes))
    }

    /// Parses a preshared key. All zeros return [`PresharedKey::NONE`].
    ///
    /// # Errors
    /// Returns [`KeyError`] if `text` is not exactly one key.
    pub fn preshared_key(self, text: &str) -> Result<PresharedKey, KeyError> {
        self.decode(text).map(|bytes| PresharedKey::new(*bytes))
    }

    /// Encodes a key.
    #[must_use]
    pub fn encode(self, key: &[u8; KEY_LEN]) -> Zeroizing<String> {
        Zeroizing::new(match self {
            Self::Hex => base16ct::lower::encode_string(key),
            Self::Base64 => Base64::encode_string(key),
        })
    }

    /// Returns the length of an encoded key, in characters.
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::Hex => 64,
            Self::Base64 => 44,
        }
    }

    fn decode(self, text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
        if text.len() != self.length() {
            return Err(KeyError::Length {
                expected: self.length(),
                found: text.len(),
            });
        }
        let mut key = Zeroizing::new([0; KEY_LEN]);
        let decoded = match self {
            Self::Hex => base16ct::mixed::decode(text, key.as_mut_slice())
                .map(<[u8]>::len)
                .ok(),
            Self::Base64 => Base64::decode(text, key.as_mut_slice())
                .map(<[u8]>::len)
                .ok(),
        };
        // 44 base64 characters with a second `=` decode to 31 bytes, so the number of decoded bytes
        // must be checked too.
        if decoded == Some(KEY_LEN) {
            Ok(key)
        } else {
            Err(self.diagnose(text))
        }
    }

    /// Returns the error of a text that has the right length but does not decode.
    fn diagnose(self, text: &str) -> KeyError {
        let belongs = |(index, character): (usize, char)| match self {
            Self::Hex => character.is_ascii_hexdigit(),
            Self::Base64 if index + 1 == self.length() => character == '=',
            Self::Base64 => character.is_ascii_alphanumeric() || matches!(character, '+' | '/'),
        };
        text.char_indices()
            .position(|at| !belongs(at))
            .map_or(KeyError::TrailingBits, |index| KeyError::Character {
                position: index + 1,
            })
    }
}

/// Reason why a text is not a key. Never contains the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum KeyError {
    /// Too short or too long.
    #[error("the key has {found} characters; expected {expected}")]
    Length {
        /// Length of a key in this encoding, in bytes of text.
        expected: usize,
        /// Length of the text, in bytes.
        found: usize,
    },
    /// A character that the encoding does not have, or not in this position.
    #[error(
        "character {position} of the key is invalid; expected 64 hexadecimal digits, or 43 base64 \
         digits and one `=`"
    )]
    Character {
        /// Position of the first such character, counted from 1.
        position: usize,
    },
    /// The last base64 digit has bits beyond the key's 256.
    #[error("the key's last base64 digit sets bits beyond the 256th, so a digit is mistyped")]
    TrailingBits,
}

#[cfg(test)]
mod tests;

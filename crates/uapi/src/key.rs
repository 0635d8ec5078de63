//! Keys as text: hex on the UAPI, base64 in files.

mod pq;

use base64ct::{Base64, Encoding as _};
use taupe_protocol::key::{KEY_LEN, PresharedKey, PrivateKey, PublicKey};
use thiserror::Error;
use zeroize::Zeroizing;

pub use pq::PqKeyError;

/// How a key of 32 bytes is written.
///
/// Both directions take the same time whatever the key is; only a text that is
/// refused is looked at digit by digit, to say what is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// 64 hexadecimal digits (RFC 4648 §8): read in either case, written in
    /// lower case.
    Hex,
    /// 44 characters, the last of which is `=` (RFC 4648 §4), with the two
    /// bits that pad the 43rd zero (§3.5): every key has exactly one text.
    Base64,
}

impl Encoding {
    /// Reads a public key.
    ///
    /// # Errors
    /// [`KeyError`] when `text` is not exactly one key.
    pub fn public_key(self, text: &str) -> Result<PublicKey, KeyError> {
        self.decode(text).map(|bytes| PublicKey(*bytes))
    }

    /// Reads a private key; `None` for all zeros, which stand for no key.
    ///
    /// # Errors
    /// [`KeyError`] when `text` is not exactly one key.
    pub fn private_key(self, text: &str) -> Result<Option<PrivateKey>, KeyError> {
        self.decode(text).map(|bytes| PrivateKey::new(*bytes))
    }

    /// Reads a preshared key; all zeros are [`PresharedKey::NONE`].
    ///
    /// # Errors
    /// [`KeyError`] when `text` is not exactly one key.
    pub fn preshared_key(self, text: &str) -> Result<PresharedKey, KeyError> {
        self.decode(text).map(|bytes| PresharedKey::new(*bytes))
    }

    /// Writes a key.
    #[must_use]
    pub fn encode(self, key: &[u8; KEY_LEN]) -> Zeroizing<String> {
        Zeroizing::new(match self {
            Self::Hex => base16ct::lower::encode_string(key),
            Self::Base64 => Base64::encode_string(key),
        })
    }

    /// How many characters a key has.
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
        // 44 base64 characters are 31 bytes with a second `=`, so the count of
        // decoded bytes matters as much as the success.
        if decoded == Some(KEY_LEN) {
            Ok(key)
        } else {
            Err(self.diagnose(text))
        }
    }

    /// What is wrong with a text of the right length that does not decode.
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

/// Why a text is not a key. Never tells what the text was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum KeyError {
    /// Too short or too long.
    #[error("the key is {found} bytes of text long; expected {expected}")]
    Length {
        /// How many bytes of text a key has in this encoding.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A character that the encoding does not have, or not in this place.
    #[error(
        "character {position} of the key does not belong there; expected 64 hexadecimal digits, \
         or 43 base64 digits and one `=`"
    )]
    Character {
        /// The first such character, counted from 1.
        position: usize,
    },
    /// The last base64 digit says more than the key's 256 bits.
    #[error("the key's last base64 digit has bits beyond the 256th set: a digit is mistyped")]
    TrailingBits,
}

#[cfg(test)]
mod tests;

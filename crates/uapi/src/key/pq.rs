//! ML-KEM keys as text: hex on the UAPI, base64 in files.

use base64ct::{Base64, Encoding as _};
use taupe_protocol::crypto::Secret;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{InvalidPqPublicKey, KEY_LEN, PqPrivateKey, PqPublicKey};
use thiserror::Error;
use zeroize::Zeroizing;

use super::Encoding;

/// The supported parameter sets.
const SUITES: [Suite; 2] = [Suite::Hybrid768, Suite::Hybrid512];

impl Encoding {
    /// Parses a seed of ML-KEM keys. All zeros return `None`, because they stand for no key.
    ///
    /// # Errors
    /// Returns [`PqKeyError`] if `text` is not exactly one seed.
    pub fn pq_private_key(self, text: &str) -> Result<Option<PqPrivateKey>, PqKeyError> {
        if text.len() != self.encoded_len(PqPrivateKey::LEN) {
            return Err(self.wrong_length(text, KeyRole::Private));
        }
        let mut seed = Secret::zeroed();
        self.decode_pq(text, seed.expose_mut())?;
        Ok(PqPrivateKey::new(seed))
    }

    /// Parses an ML-KEM public key and validates it (FIPS 203 §7.2).
    ///
    /// # Errors
    /// Returns [`PqKeyError`] if `text` is not exactly one valid key.
    pub fn pq_public_key(self, text: &str) -> Result<PqPublicKey, PqKeyError> {
        let length = SUITES
            .into_iter()
            .map(|suite| suite.parameters().encapsulation_key_len())
            .find(|length| self.encoded_len(*length) == text.len())
            .ok_or_else(|| self.wrong_length(text, KeyRole::Public))?;
        let mut key = vec![0; length];
        self.decode_pq(text, &mut key)?;
        PqPublicKey::new(&key).map_err(|error| match error {
            InvalidPqPublicKey::Length(_) => self.wrong_length(text, KeyRole::Public),
            InvalidPqPublicKey::Modulus => PqKeyError::Modulus,
        })
    }

    /// Encodes a seed of ML-KEM keys.
    #[must_use]
    pub fn encode_pq_private_key(self, key: &PqPrivateKey) -> Zeroizing<String> {
        Zeroizing::new(self.encode_bytes(key.expose().expose()))
    }

    /// Encodes an ML-KEM public key.
    #[must_use]
    pub fn encode_pq_public_key(self, key: &PqPublicKey) -> String {
        self.encode_bytes(key.as_bytes())
    }

    /// Returns true if a text of this length may be an ML-KEM key, private or public.
    #[must_use]
    pub fn is_pq_length(self, length: usize) -> bool {
        let publics = SUITES.map(|suite| suite.parameters().encapsulation_key_len());
        let mut keys = publics.into_iter().chain([PqPrivateKey::LEN]);
        keys.any(|bytes| self.encoded_len(bytes) == length)
    }

    fn encode_bytes(self, bytes: &[u8]) -> String {
        match self {
            Self::Hex => base16ct::lower::encode_string(bytes),
            Self::Base64 => Base64::encode_string(bytes),
        }
    }

    /// Returns the length of encoded bytes, in characters.
    const fn encoded_len(self, bytes: usize) -> usize {
        match self {
            Self::Hex => 2 * bytes,
            Self::Base64 => bytes.div_ceil(3) * 4,
        }
    }

    /// Decodes a text whose length matches `key`.
    fn decode_pq(self, text: &str, key: &mut [u8]) -> Result<(), PqKeyError> {
        let decoded = match self {
            Self::Hex => base16ct::mixed::decode(text, key).map(<[u8]>::len).ok(),
            Self::Base64 => Base64::decode(text, key).map(<[u8]>::len).ok(),
        };
        if decoded == Some(key.len()) {
            return Ok(());
        }
        let digits = match self {
            Self::Hex => text.len(),
            Self::Base64 => (8 * key.len()).div_ceil(6),
        };
        let belongs = |(index, character): (usize, char)| match self {
            Self::Hex => character.is_ascii_hexdigit(),
            Self::Base64 if index >= digits => character == '=',
            Self::Base64 => character.is_ascii_alphanumeric() || matches!(character, '+' | '/'),
        };
        let invalid = text.char_indices().position(|at| !belongs(at));
        Err(
            invalid.map_or(PqKeyError::TrailingBits, |index| PqKeyError::Character {
                position: index + 1,
            }),
        )
    }

    /// Returns the error of a text of the wrong length, and recognises other kinds of keys.
    fn wrong_length(self, text: &str, wanted: KeyRole) -> PqKeyError {
        let found = text.len();
        let has_length_of = |bytes| self.encoded_len(bytes) == found;
        let is_public = SUITES
            .iter()
            .any(|set| has_length_of(set.parameters().encapsulation_key_len()));
        match wanted {
            _ if has_length_of(KEY_LEN) => PqKeyError::Classic,
            KeyRole::Public if has_length_of(PqPrivateKey::LEN) => PqKeyError::PrivateForPublic,
            KeyRole::Private if is_public => PqKeyError::PublicForPrivate,
            _ => PqKeyError::Length {
                found,
                expected: match (wanted, self) {
                    (KeyRole::Private, Self::Hex) => "128 hexadecimal digits",
                    (KeyRole::Private, Self::Base64) => "86 base64 digits and `==`",
                    (KeyRole::Public, Self::Hex) => {
                        "2368 hexadecimal digits (ML-KEM-768) or 1600 (ML-KEM-512)"
                    }
                    (KeyRole::Public, Self::Base64) => {
                        "1579 base64 digits (ML-KEM-768) or 1067 (ML-KEM-512), and one `=`"
                    }
                },
            },
        }
    }
}

#[derive(Clone, Copy)]
enum KeyRole {
    Private,
    Public,
}

/// Reason why a text is not an ML-KEM key. Never contains the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PqKeyError {
    /// The length of no known key.
    #[error("the key has {found} characters; expected {expected}")]
    Length {
        /// Length of the text, in bytes.
        found: usize,
        /// Expected form.
        expected: &'static str,
    },
    /// The length of a 32-byte key.
    #[error("the key has the length of an X25519 or preshared key; ML-KEM keys are longer")]
    Classic,
    /// A private key instead of a public key.
    #[error("the key has the length of a private ML-KEM key, which must stay secret")]
    PrivateForPublic,
    /// A public key instead of a private key.
    #[error("the key has the length of a public ML-KEM key, not of a private one")]
    PublicForPrivate,
    /// A character that the encoding does not have, or not in this position.
    #[error("character {position} of the key is invalid")]
    Character {
        /// Position of the first such character, counted from 1.
        position: usize,
    },
    /// The last base64 digit has bits beyond the end of the key.
    #[error("the key's last base64 digit sets bits beyond the key's end, so a digit is mistyped")]
    TrailingBits,
    /// A coefficient that is not reduced (FIPS 203 §7.2).
    #[error("the key has a coefficient that is not below 3329, so a character was changed")]
    Modulus,
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_protocol::crypto::default_provider;

    fn seed(byte: u8) -> PqPrivateKey {
        PqPrivateKey::new(Secret::new([byte; 64])).expect("not zero")
    }

    #[test]
    fn keys_read_back() {
        for encoding in [Encoding::Hex, Encoding::Base64] {
            let text = encoding.encode_pq_private_key(&seed(7));
            assert!(encoding.pq_private_key(&text) == Ok(Some(seed(7))));
            for parameters in SUITES {
                let public = seed(7).public(default_provider(), parameters);
                let text = encoding.encode_pq_public_key(&public);
                assert!(encoding.pq_public_key(&text) == Ok(public));
            }
        }
        let zeros = "0".repeat(128);
        assert!(Encoding::Hex.pq_private_key(&zeros) == Ok(None));
    }

    #[test]
    fn errors_do_not_contain_the_key() {
        let private = Encoding::Base64.encode_pq_private_key(&seed(7));
        let public = seed(7).public(default_provider(), Suite::Hybrid768);
        let public = Encoding::Base64.encode_pq_public_key(&public);
        let classic = Encoding::Base64.encode(&[9; 32]);
        let of_private = |text: &str| Encoding::Base64.pq_private_key(text).err();
        let of_public = |text: &str| Encoding::Base64.pq_public_key(text).err();
        assert_eq!(of_private(&public), Some(PqKeyError::PublicForPrivate));
        assert_eq!(of_public(&private), Some(PqKeyError::PrivateForPublic));
        assert_eq!(of_private(&classic), Some(PqKeyError::Classic));
        assert_eq!(of_public(&classic), Some(PqKeyError::Classic));
        for text in ["", "AAAA", &public[1..]] {
            let length = |error| matches!(error, Some(PqKeyError::Length { .. }));
            assert!(length(of_public(text)), "{text}");
            assert!(length(of_private(text)), "{text}");
        }
        let at = |position| Some(PqKeyError::Character { position });
        assert_eq!(of_public(&public.replace('=', "A")), at(1580));
        assert_eq!(of_public(&format!("!{}", &public[1..])), at(1));
        assert_eq!(of_private(&format!("{}A=", &private[..86])), at(87));
        // 64 bytes are 512 bits, and 86 digits encode 516.
        assert_eq!(
            of_private(&format!("{}B==", &private[..85])),
            Some(PqKeyError::TrailingBits)
        );
        assert_eq!(
            of_public(&format!("////{}", &public[4..])),
            Some(PqKeyError::Modulus)
        );
    }
}

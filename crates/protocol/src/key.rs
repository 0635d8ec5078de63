//! Keys in WireGuard's format: 32 bytes, hexadecimal in the UAPI, base64 in files.

use core::fmt;
use core::hash::{Hash, Hasher};

use subtle::ConstantTimeEq;
use taupe_crypto::{Provider, Secret};
use thiserror::Error;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::suite::Suite;

/// Length of every WireGuard key, in bytes.
pub const KEY_LEN: usize = 32;

/// A Curve25519 public key. It identifies a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; KEY_LEN]);

impl Hash for PublicKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl fmt::Debug for PublicKey {
    /// Formats the first four bytes in hexadecimal: enough to tell peers apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

/// A Curve25519 private key, clamped (RFC 7748 §5), zeroised on drop. A move of it leaves no copy.
#[derive(Clone)]
pub struct PrivateKey(Box<Secret<KEY_LEN>>);

impl PrivateKey {
    /// Clamps `bytes`, as the kernel does, so that reading the key back returns the value in use.
    /// `None` for all zeros, which mean "no key" in the UAPI.
    #[must_use]
    pub fn new(mut bytes: [u8; KEY_LEN]) -> Option<Self> {
        let absent = bool::from(bytes.ct_eq(&[0; KEY_LEN]));
        bytes[0] &= 248;
        bytes[31] = (bytes[31] & 127) | 64;
        let key = Self(boxed(&bytes));
        bytes.zeroize();
        (!absent).then_some(key)
    }

    /// Returns the key bytes. Never log them.
    #[must_use]
    pub fn expose(&self) -> &[u8; KEY_LEN] {
        self.0.expose()
    }
}

impl PartialEq for PrivateKey {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for PrivateKey {}

impl Zeroize for PrivateKey {
    fn zeroize(&mut self) {
        Secret::zeroize(&mut self.0);
    }
}

impl ZeroizeOnDrop for PrivateKey {}

/// Copies a secret to a place of its own.
fn boxed<const N: usize>(bytes: &[u8; N]) -> Box<Secret<N>> {
    let mut secret = Box::new(Secret::zeroed());
    secret.expose_mut().copy_from_slice(bytes);
    secret
}

/// The symmetric key mixed into a peer's handshake (whitepaper §5.2), zeroised on drop. All zeros
/// mean "no key", in the UAPI and in the handshake. A move of it leaves no copy.
#[derive(Clone)]
pub struct PresharedKey(Option<Box<Secret<KEY_LEN>>>);

impl PresharedKey {
    /// No preshared key.
    pub const NONE: Self = Self(None);

    /// Wraps `bytes`.
    #[must_use]
    pub fn new(mut bytes: [u8; KEY_LEN]) -> Self {
        let absent = bool::from(bytes.ct_eq(&[0; KEY_LEN]));
        let key = (!absent).then(|| boxed(&bytes));
        bytes.zeroize();
        Self(key)
    }

    /// Returns the key bytes. Never log them.
    #[must_use]
    pub fn expose(&self) -> &[u8; KEY_LEN] {
        self.0.as_ref().map_or(&[0; KEY_LEN], |key| key.expose())
    }

    /// Checks whether a key is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &Self) -> bool {
        self.expose().ct_eq(other.expose()).into()
    }
}

impl Eq for PresharedKey {}

impl Zeroize for PresharedKey {
    fn zeroize(&mut self) {
        self.0 = None;
    }
}

impl ZeroizeOnDrop for PresharedKey {}

/// The seed of a device's ML-KEM key pairs: d ‖ z of FIPS 203 §7.1, zeroised on drop. A move of it
/// leaves no copy.
#[derive(Clone, PartialEq, Eq)]
pub struct PqPrivateKey(Box<Secret<{ Self::LEN }>>);

impl PqPrivateKey {
    /// Length in bytes.
    pub const LEN: usize = 64;

    /// Wraps `seed`. `None` for all zeros, which mean "no key" in the UAPI.
    #[must_use]
    pub fn new(seed: Secret<{ Self::LEN }>) -> Option<Self> {
        (seed != Secret::zeroed()).then(|| Self(boxed(seed.expose())))
    }

    /// Returns the seed. Never log it.
    #[must_use]
    pub fn expose(&self) -> &Secret<{ Self::LEN }> {
        &self.0
    }

    /// Derives the public key for a suite with static keys.
    #[must_use]
    pub fn public(&self, crypto: &Provider, suite: Suite) -> PqPublicKey {
        let key = crypto.kem.decapsulation_key(suite.parameters(), &self.0);
        PqPublicKey(key.encapsulation_key().into())
    }
}

/// A peer's static ML-KEM encapsulation key that has passed the checks of FIPS 203 §7.2.
#[derive(Clone, PartialEq, Eq)]
pub struct PqPublicKey(Box<[u8]>);

/// Reason why bytes are not an encapsulation key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum InvalidPqPublicKey {
    /// The length is neither that of ML-KEM-768 nor that of ML-KEM-512.
    #[error("it has {0} bytes; a key of ML-KEM-768 has 1184, one of ML-KEM-512 800. Is it whole?")]
    Length(usize),
    /// A coefficient is not reduced modulo 3329.
    #[error("it has a coefficient that is not below 3329; has a character of it been changed?")]
    Modulus,
}

impl PqPublicKey {
    /// Checks `bytes`: the length of a parameter set, and every coefficient below 3329.
    ///
    /// # Errors
    /// Those of [`InvalidPqPublicKey`].
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidPqPublicKey> {
        let length = InvalidPqPublicKey::Length(bytes.len());
        let suite = suite_of(bytes.len()).ok_or(length)?;
        // ByteEncode12 (FIPS 203 §4.2.1): two coefficients in three bytes. The 32 bytes of ρ
        // follow.
        let polynomials = suite.parameters().encapsulation_key_len() - 32;
        let reduced = bytes[..polynomials].chunks_exact(3).all(|three| {
            let [a, b, c] = [three[0], three[1], three[2]].map(u16::from);
            (a | (b & 15) << 8) < 3329 && (b >> 4 | c << 4) < 3329
        });
        reduced
            .then(|| Self(bytes.into()))
            .ok_or(InvalidPqPublicKey::Modulus)
    }

    /// Returns the key as FIPS 203 encodes it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the suite that uses keys of this length.
    #[must_use]
    pub fn suite(&self) -> Suite {
        suite_of(self.0.len()).unwrap_or(Suite::Hybrid768)
    }

    /// Returns the BLAKE2s-256 hash of the key: short enough for people to compare.
    #[must_use]
    pub fn fingerprint(&self, crypto: &Provider) -> [u8; 32] {
        crypto.hash.hash(&[&self.0])
    }
}

fn suite_of(length: usize) -> Option<Suite> {
    [Suite::Hybrid768, Suite::Hybrid512]
        .into_iter()
        .find(|suite| suite.parameters().encapsulation_key_len() == length)
}

impl fmt::Debug for PqPublicKey {
    /// Formats the first four bytes in hexadecimal: enough to tell keys apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.first_chunk() {
            Some([a, b, c, d]) => write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…"),
            None => f.write_str("…"),
        }
    }
}

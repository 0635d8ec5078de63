//! Keys as WireGuard's tools know them: 32 bytes, hex on the UAPI, base64 in files.

use core::fmt;
use core::hash::{Hash, Hasher};

use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Length of every WireGuard key, in bytes.
pub const KEY_LEN: usize = 32;

/// A Curve25519 public key, which names a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; KEY_LEN]);

impl Hash for PublicKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl fmt::Debug for PublicKey {
    /// The first four bytes in hex: enough to tell peers apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

/// A Curve25519 private key, clamped (RFC 7748 §5), zeroised on drop.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PrivateKey([u8; KEY_LEN]);

impl PrivateKey {
    /// Clamps `bytes`, as the kernel does, so that the key reads back the way
    /// it is used. `None` for all zeros, which the UAPI uses for "no key".
    #[must_use]
    pub fn new(mut bytes: [u8; KEY_LEN]) -> Option<Self> {
        let absent = bool::from(bytes.ct_eq(&[0; KEY_LEN]));
        bytes[0] &= 248;
        bytes[31] = (bytes[31] & 127) | 64;
        let key = Self(bytes);
        bytes.zeroize();
        (!absent).then_some(key)
    }

    /// The key itself. Never log it.
    #[must_use]
    pub fn expose(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl PartialEq for PrivateKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for PrivateKey {}

/// The symmetric key mixed into a peer's handshake (whitepaper §5.2), zeroised
/// on drop. All zeros means that none is set, on the UAPI and in the handshake.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PresharedKey([u8; KEY_LEN]);

impl PresharedKey {
    /// No preshared key.
    pub const NONE: Self = Self([0; KEY_LEN]);

    /// Wraps `bytes`.
    #[must_use]
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// The key itself. Never log it.
    #[must_use]
    pub fn expose(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Whether a key is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !bool::from(self.0.ct_eq(&[0; KEY_LEN]))
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for PresharedKey {}

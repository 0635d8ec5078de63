//! Diffie-Hellman: the seam.

use crate::SharedSecret;

/// X25519 (RFC 7748).
///
/// A private key is any 32 bytes; clamping is part of the function.
pub trait Dh: Send + Sync {
    /// The public key of `private`: the base point times `private`.
    fn public(&self, private: &[u8; 32]) -> [u8; 32];

    /// The secret shared with the owner of `public`, or `None` when it is all
    /// zeros.
    ///
    /// It is all zeros exactly when `public` is a point of low order: such a
    /// "secret" is known to everyone. The decision takes constant time
    /// (RFC 7748 §6.1).
    fn agree(&self, private: &[u8; 32], public: &[u8; 32]) -> Option<SharedSecret>;
}

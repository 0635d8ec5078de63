//! Diffie-Hellman: the trait.

use crate::SharedSecret;
#[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
use crate::edwards::Edwards;

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

    /// `public`, ready for [`Self::agree_prepared`]: for a key that is agreed with more than
    /// once, with whatever private keys.
    ///
    /// Takes a third of the time of an agreement where it makes agreements faster, else none. It
    /// takes that in vain for a key that no private key has (a point of the twist), as forgers may
    /// send, whose agreements are no faster.
    fn prepare(&self, public: &[u8; 32]) -> PreparedKey {
        PreparedKey::new(public)
    }

    /// As [`Self::agree`], with a key that this backend has prepared.
    fn agree_prepared(&self, private: &[u8; 32], public: &PreparedKey) -> Option<SharedSecret> {
        self.agree(private, public.as_bytes())
    }
}

/// A public key, and what a backend has computed from it alone.
#[derive(Clone)]
pub struct PreparedKey {
    bytes: [u8; 32],
    #[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
    pub(crate) edwards: Option<Edwards>,
}

impl PreparedKey {
    /// `public`, and nothing computed from it.
    #[must_use]
    pub fn new(public: &[u8; 32]) -> Self {
        Self {
            bytes: *public,
            #[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
            edwards: None,
        }
    }

    /// The public key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

//! Authentication by signature (del Pino, Lyubashevsky and Pointcheval, 2016): each
//! end signs the ephemeral part of its message.
//!
//! **For comparison only.** As published, a signature covers neither who it is for
//! nor what was said before, and the key that hides the initiator is made of
//! nothing but what is on the wire: whoever listens learns the hash of its public
//! key. Unlike the published program, whose responder takes any signature, both
//! ends here refuse a bad one.

use crate::authentication::{Authentication, Field};
use crate::error::Error;
use taupe_crypto::Secret;
use zeroize::Zeroizing;

/// A signature scheme.
pub trait Scheme: 'static {
    /// A private key.
    type PrivateKey: Send + Sync;
    /// A public key; its bytes are what ends know each other by.
    type PublicKey: AsRef<[u8]> + Send + Sync;

    /// Bytes of a signature, of any message.
    const SIGNATURE_LEN: usize;

    /// Signs `message`. Randomness, where the scheme needs any, is its own affair.
    fn sign(key: &Self::PrivateKey, message: &[u8]) -> Vec<u8>;

    /// Whether `signature` is one of `message` by the owner of `key`.
    fn verify(key: &Self::PublicKey, message: &[u8], signature: &[u8]) -> bool;
}

/// Authentication by signature.
pub struct DelPino<S: Scheme> {
    /// This end's private key.
    pub private: S::PrivateKey,
    /// Its public key.
    pub local: S::PublicKey,
    /// The other end's.
    pub remote: S::PublicKey,
}

impl<S: Scheme> Authentication for DelPino<S> {
    fn local(&self) -> &[u8] {
        self.local.as_ref()
    }

    fn remote(&self) -> &[u8] {
        self.remote.as_ref()
    }

    fn field_len(&self) -> usize {
        S::SIGNATURE_LEN
    }

    fn make(&self, ephemeral: &[u8], _coins: &Secret<32>) -> Field {
        let bytes = S::sign(&self.private, ephemeral);
        let mixed = Zeroizing::new(bytes.clone());
        Field { bytes, mixed }
    }

    fn open(&self, field: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
        Ok(Zeroizing::new(field.to_vec()))
    }

    fn check(&self, ephemeral: &[u8], field: &[u8]) -> Result<(), Error> {
        if S::verify(&self.remote, ephemeral, field) {
            Ok(())
        } else {
            Err(Error::Signature)
        }
    }
}

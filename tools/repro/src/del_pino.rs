//! Authentication by signature (del Pino, Lyubashevsky and Pointcheval, 2016): each end signs the
//! ephemeral part of its message.
//!
//! **For comparison only.** As published, a signature covers neither the intended receiver nor the
//! earlier messages. The key that encrypts the initiator's identity is derived from public bytes
//! only, so an eavesdropper learns the hash of the initiator's public key. The published responder
//! accepts any signature; here both ends reject a bad one.

use crate::authentication::{Authentication, Field};
use crate::error::Error;
use taupe_crypto::Secret;
use zeroize::Zeroizing;

/// A signature scheme.
pub trait Scheme: 'static {
    /// A private key.
    type PrivateKey: Send + Sync;
    /// A public key; its bytes identify an end.
    type PublicKey: AsRef<[u8]> + Send + Sync;

    /// Bytes of a signature, for a message of any length.
    const SIGNATURE_LEN: usize;

    /// Signs `message`. The scheme generates randomness itself if it needs any.
    fn sign(key: &Self::PrivateKey, message: &[u8]) -> Vec<u8>;

    /// Returns true if `signature` is a valid signature of `message` by the owner of `key`.
    fn verify(key: &Self::PublicKey, message: &[u8], signature: &[u8]) -> bool;
}

/// Authentication by signature.
pub struct DelPino<S: Scheme> {
    /// This end's private key.
    pub private: S::PrivateKey,
    /// This end's public key.
    pub local: S::PublicKey,
    /// The other end's public key.
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

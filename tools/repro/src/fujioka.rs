//! Authentication by KEM (Fujioka, Suzuki, Xagawa and Yoneyama, 2012): each end proves that it can
//! decapsulate a ciphertext to its long-term key.
//!
//! **For comparison only.** The published program uses CCA-secure Kyber of round 3 for long-term
//! keys. Here they are ML-KEM keys (FIPS 203), with the same sizes and almost the same cost, but
//! different hashes. Encapsulation takes 32 fresh random bytes; the published program takes 4 bytes
//! and a hash of its private key.

use crate::authentication::{Authentication, Field};
use crate::error::Error;
use taupe_crypto::{
    DecapsulationKey, EncapsulationKey, KemParameters, Provider, Secret, SharedSecret,
};
use zeroize::Zeroizing;

/// A long-term key pair.
pub struct KeyPair {
    crypto: &'static Provider,
    parameters: KemParameters,
    private: Box<dyn DecapsulationKey>,
    public: Vec<u8>,
}

impl KeyPair {
    /// Creates the key pair from 64 uniformly random bytes.
    #[must_use]
    pub fn new(crypto: &'static Provider, parameters: KemParameters, seed: &Secret<64>) -> Self {
        let private = crypto.kem.decapsulation_key(parameters, seed);
        Self {
            crypto,
            parameters,
            public: private.encapsulation_key(),
            private,
        }
    }

    /// Returns the public key, for the other end.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Combines this key pair with the other end's public key.
    ///
    /// # Errors
    ///
    /// [`Error::Kem`] for an invalid public key.
    pub fn with(self, remote: &[u8]) -> Result<Fujioka, Error> {
        let kem = self.crypto.kem;
        Ok(Fujioka {
            remote_key: kem.encapsulation_key(self.parameters, remote)?,
            remote: remote.to_vec(),
            local: self,
        })
    }
}

/// Authentication by KEM.
pub struct Fujioka {
    local: KeyPair,
    remote: Vec<u8>,
    remote_key: Box<dyn EncapsulationKey>,
}

impl Authentication for Fujioka {
    fn local(&self) -> &[u8] {
        &self.local.public
    }

    fn remote(&self) -> &[u8] {
        &self.remote
    }

    fn field_len(&self) -> usize {
        self.local.parameters.ciphertext_len()
    }

    fn make(&self, _ephemeral: &[u8], coins: &Secret<32>) -> Field {
        let (bytes, shared) = self.remote_key.encapsulate(coins);
        let mixed = mixed(&shared);
        Field { bytes, mixed }
    }

    fn open(&self, field: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
        Ok(mixed(&self.local.private.decapsulate(field)?))
    }

    fn check(&self, _ephemeral: &[u8], _field: &[u8]) -> Result<(), Error> {
        // A wrong ciphertext gives a secret that nobody knows, so the encrypted fields after it do
        // not verify.
        Ok(())
    }
}

fn mixed(shared: &SharedSecret) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(shared.expose().to_vec())
}

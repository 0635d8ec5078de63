//! Authentication by KEM (Fujioka, Suzuki, Xagawa and Yoneyama, 2012): each end
//! shows that it can open what was encapsulated to its long-term key.
//!
//! **For comparison only.** The published program has CCA-secure Kyber of round 3
//! for long-term keys. Here they are ML-KEM's (FIPS 203): of the same sizes and
//! almost the same cost, hashing differently. Encapsulation takes 32 fresh random
//! bytes, where the program takes 4 and a hash of its private key.

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
    /// The key pair of 64 uniformly random bytes.
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

    /// The public key, for the other end to know.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Makes a tunnel's end of this key pair and the other end's public key.
    ///
    /// # Errors
    ///
    /// [`Error::Kem`] for a public key that is none.
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
        // A wrong ciphertext gives a secret that nobody has, and the encrypted
        // fields that follow do not verify.
        Ok(())
    }
}

fn mixed(shared: &SharedSecret) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(shared.expose().to_vec())
}

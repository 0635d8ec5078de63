//! Key encapsulation: the trait, and its backend in pure Rust.

use crate::{Secret, SharedSecret};
use ml_kem::{
    Decapsulate, DecapsulationKey512, DecapsulationKey768, DecapsulationKey1024,
    EncapsulationKey512, EncapsulationKey768, EncapsulationKey1024, KeyExport, KeyInit, TryKeyInit,
};
use thiserror::Error;
use zeroize::Zeroize;

/// A parameter set of ML-KEM (FIPS 203 §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KemParameters {
    /// ML-KEM-512, security category 1.
    MlKem512,
    /// ML-KEM-768, security category 3.
    MlKem768,
    /// ML-KEM-1024, security category 5.
    MlKem1024,
}

impl KemParameters {
    /// All of them, from the smallest.
    pub const ALL: [Self; 3] = [Self::MlKem512, Self::MlKem768, Self::MlKem1024];

    /// Bytes of an encapsulation key.
    pub const fn encapsulation_key_len(self) -> usize {
        match self {
            Self::MlKem512 => 800,
            Self::MlKem768 => 1184,
            Self::MlKem1024 => 1568,
        }
    }

    /// Bytes of a ciphertext.
    pub const fn ciphertext_len(self) -> usize {
        match self {
            Self::MlKem512 => 768,
            Self::MlKem768 => 1088,
            Self::MlKem1024 => 1568,
        }
    }
}

/// A KEM input that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidKemInput {
    /// An encapsulation key or ciphertext of the wrong length.
    #[error("{what} is {actual} bytes long, but must be {expected} for this parameter set")]
    Length {
        /// The input's name.
        what: &'static str,
        /// Bytes received.
        actual: usize,
        /// Bytes of the parameter set.
        expected: usize,
    },
    /// An encapsulation key with a coefficient that is not reduced (FIPS 203
    /// §7.2, modulus check).
    #[error("the encapsulation key is malformed: it has a coefficient that is not below 3329")]
    Modulus,
}

/// ML-KEM (FIPS 203) without randomness of its own.
///
/// Both kinds of key are objects, so that a key that is kept is checked and
/// expanded once, and an unchecked key cannot be used.
pub trait Kem: Send + Sync {
    /// Expands the private key of `seed`, which is FIPS 203's `d` followed by
    /// `z`, 32 uniformly random bytes each. Keep the seed, not an expanded
    /// form: only a seed binds a private key to one public key.
    fn decapsulation_key(
        &self,
        parameters: KemParameters,
        seed: &Secret<64>,
    ) -> Box<dyn DecapsulationKey>;

    /// Checks and expands a received public key.
    ///
    /// # Errors
    ///
    /// [`InvalidKemInput`] for the wrong length or a failed modulus check.
    fn encapsulation_key(
        &self,
        parameters: KemParameters,
        bytes: &[u8],
    ) -> Result<Box<dyn EncapsulationKey>, InvalidKemInput>;
}

/// An expanded private key, zeroised on drop.
pub trait DecapsulationKey: Send + Sync {
    /// The public key, as it is sent.
    fn encapsulation_key(&self) -> Vec<u8>;

    /// Returns the shared secret of `ciphertext`.
    ///
    /// A ciphertext for another key gives a pseudo-random secret (implicit
    /// rejection), and the authentication that follows in the protocol fails.
    /// Neither the result nor the time taken shows the difference.
    ///
    /// # Errors
    ///
    /// [`InvalidKemInput::Length`]; the length is public.
    fn decapsulate(&self, ciphertext: &[u8]) -> Result<SharedSecret, InvalidKemInput>;
}

/// A public key that passed its checks.
pub trait EncapsulationKey: Send + Sync {
    /// Makes a shared secret and the ciphertext that carries it to the owner
    /// of this key.
    ///
    /// `coins` are FIPS 203's `m`: 32 uniformly random bytes, fresh for every
    /// call. Whoever knows them knows the shared secret.
    fn encapsulate(&self, coins: &Secret<32>) -> (Vec<u8>, SharedSecret);
}

/// ML-KEM by the RustCrypto project's `ml-kem`.
///
/// Its private keys zeroise themselves on drop. Not cleared: copies of the seed
/// and polynomials on the stack of a running operation.
#[cfg_attr(
    not(feature = "portable"),
    allow(dead_code, reason = "unused where AWS-LC takes coins")
)]
pub(crate) struct RustCryptoMlKem;

impl Kem for RustCryptoMlKem {
    fn decapsulation_key(
        &self,
        parameters: KemParameters,
        seed: &Secret<64>,
    ) -> Box<dyn DecapsulationKey> {
        let seed = seed.expose().into();
        match parameters {
            KemParameters::MlKem512 => Box::new(DecapsulationKey512::new(seed)),
            KemParameters::MlKem768 => Box::new(DecapsulationKey768::new(seed)),
            KemParameters::MlKem1024 => Box::new(DecapsulationKey1024::new(seed)),
        }
    }

    fn encapsulation_key(
        &self,
        parameters: KemParameters,
        bytes: &[u8],
    ) -> Result<Box<dyn EncapsulationKey>, InvalidKemInput> {
        check_len(
            "the encapsulation key",
            bytes,
            parameters.encapsulation_key_len(),
        )?;
        // The length is right, so that only the modulus check can fail.
        Ok(match parameters {
            KemParameters::MlKem512 => Box::new(
                EncapsulationKey512::new_from_slice(bytes).map_err(|_| InvalidKemInput::Modulus)?,
            ),
            KemParameters::MlKem768 => Box::new(
                EncapsulationKey768::new_from_slice(bytes).map_err(|_| InvalidKemInput::Modulus)?,
            ),
            KemParameters::MlKem1024 => Box::new(
                EncapsulationKey1024::new_from_slice(bytes)
                    .map_err(|_| InvalidKemInput::Modulus)?,
            ),
        })
    }
}

/// Checks the length of a received `what`.
pub(crate) fn check_len(
    what: &'static str,
    bytes: &[u8],
    expected: usize,
) -> Result<(), InvalidKemInput> {
    if bytes.len() == expected {
        Ok(())
    } else {
        Err(InvalidKemInput::Length {
            what,
            actual: bytes.len(),
            expected,
        })
    }
}

/// `ml-kem`'s generic parameter sets have a private bound, so that nothing can
/// be implemented for all of them at once.
macro_rules! implement_keys {
    ($parameters:expr, $decapsulation:ty, $encapsulation:ty) => {
        impl DecapsulationKey for $decapsulation {
            fn encapsulation_key(&self) -> Vec<u8> {
                Self::encapsulation_key(self).to_bytes().to_vec()
            }

            fn decapsulate(&self, ciphertext: &[u8]) -> Result<SharedSecret, InvalidKemInput> {
                self.decapsulate_slice(ciphertext)
                    .map(|mut shared| take_secret(&mut shared))
                    .map_err(|_| InvalidKemInput::Length {
                        what: "the ciphertext",
                        actual: ciphertext.len(),
                        expected: $parameters.ciphertext_len(),
                    })
            }
        }

        impl EncapsulationKey for $encapsulation {
            fn encapsulate(&self, coins: &Secret<32>) -> (Vec<u8>, SharedSecret) {
                let (ciphertext, mut shared) =
                    self.encapsulate_deterministic(coins.expose().into());
                (ciphertext.to_vec(), take_secret(&mut shared))
            }
        }
    };
}

implement_keys!(
    KemParameters::MlKem512,
    DecapsulationKey512,
    EncapsulationKey512
);
implement_keys!(
    KemParameters::MlKem768,
    DecapsulationKey768,
    EncapsulationKey768
);
implement_keys!(
    KemParameters::MlKem1024,
    DecapsulationKey1024,
    EncapsulationKey1024
);

/// Moves a secret out of `ml-kem`'s array, which does not zeroise itself.
fn take_secret(shared: &mut ml_kem::SharedKey) -> SharedSecret {
    let mut secret = SharedSecret::zeroed();
    secret.expose_mut().copy_from_slice(shared);
    shared.as_mut_slice().zeroize();
    secret
}

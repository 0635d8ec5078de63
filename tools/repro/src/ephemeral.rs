//! The KEM of ephemeral keys: K-PKE without the re-encryption check that detects changed
//! ciphertexts (the published program's `CPAEncaps`).

use crate::error::Error;
use crate::pke::{PrivateKey, PublicKey, sha3_512};
use taupe_crypto::{Provider, Secret, SharedSecret};

/// Returns a ciphertext to `key` and its secret, from 32 uniformly random `coins`.
pub(crate) fn encapsulate(
    crypto: &Provider,
    key: &PublicKey,
    coins: &Secret<32>,
) -> (Vec<u8>, SharedSecret) {
    let stretched = sha3_512(&[coins.expose()]);
    let (mut message, mut coins) = (Secret::zeroed(), Secret::zeroed());
    message.expose_mut().copy_from_slice(&stretched[0]);
    coins.expose_mut().copy_from_slice(&stretched[1]);
    (key.encrypt(&message, &coins), shared(crypto, &message))
}

/// Returns the secret in `ciphertext`, or another secret if decryption fails.
pub(crate) fn decapsulate(
    crypto: &Provider,
    key: &PrivateKey,
    ciphertext: &[u8],
) -> Result<SharedSecret, Error> {
    Ok(shared(crypto, &key.decrypt(ciphertext)?))
}

fn shared(crypto: &Provider, message: &Secret<32>) -> SharedSecret {
    Secret::new(crypto.hash.hash(&[message.expose()]))
}

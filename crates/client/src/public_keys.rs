//! Public keys of private keys.

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{KEY_LEN, PqPrivateKey, PqPublicKey, PublicKey};
use taupe_protocol::update::Suite;

/// Returns the public key of a private key, clamped or not (X25519, RFC 7748).
#[must_use]
pub fn public_key(private: &[u8; KEY_LEN]) -> PublicKey {
    PublicKey(default_provider().dh.public(private))
}

/// Returns the ML-KEM public key of a seed, for a suite.
#[must_use]
pub fn pq_public_key(private: &PqPrivateKey, suite: Suite) -> PqPublicKey {
    private.public(default_provider(), suite)
}

//! ChaCha20-Poly1305 and X25519 in pure Rust (RustCrypto, dalek).
//!
//! The key objects zeroise themselves on drop. Not cleared: registers, and
//! intermediate field elements on the stack of a running multiplication.

use crate::{
    Aead, AeadKey, Dh, NotAuthentic, Packet, Secret, SharedSecret,
    aead::{nonce, open_each, rust_crypto},
    erase_dead_stack,
};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use x25519_dalek::{PublicKey, StaticSecret};

/// Stack that a call of the ciphers uses, at most, in bytes.
const CIPHER_STACK: usize = 4 << 10;

/// The backend.
pub(crate) struct Portable;

impl Aead for Portable {
    fn key(&self, key: &Secret<32>) -> Box<dyn AeadKey> {
        Box::new(Key(ChaCha20Poly1305::new(key.expose().into())))
    }

    fn seal_with_nonce(&self, key: &Secret<32>, nonce: &[u8; 12], ad: &[u8], data: &mut [u8]) {
        let cipher = ChaCha20Poly1305::new(key.expose().into());
        rust_crypto::seal(&cipher, nonce.into(), ad, data);
    }

    fn open_with_nonce(
        &self,
        key: &Secret<32>,
        nonce: &[u8; 12],
        ad: &[u8],
        data: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let cipher = ChaCha20Poly1305::new(key.expose().into());
        rust_crypto::open(&cipher, nonce.into(), ad, data)
    }
}

struct Key(ChaCha20Poly1305);

impl AeadKey for Key {
    fn seal(&self, packets: &mut [Packet<'_>]) {
        for packet in packets {
            let nonce = nonce(packet.counter);
            rust_crypto::seal(&self.0, (&nonce).into(), &[], packet.data);
        }
        erase_dead_stack::<CIPHER_STACK>();
    }

    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        open_each(packets, authentic, |packet| {
            let nonce = nonce(packet.counter);
            rust_crypto::open(&self.0, (&nonce).into(), &[], packet.data).is_ok()
        });
        erase_dead_stack::<CIPHER_STACK>();
    }
}

impl Dh for Portable {
    fn public(&self, private: &[u8; 32]) -> [u8; 32] {
        PublicKey::from(&StaticSecret::from(*private)).to_bytes()
    }

    fn agree(&self, private: &[u8; 32], public: &[u8; 32]) -> Option<SharedSecret> {
        let shared = StaticSecret::from(*private).diffie_hellman(&PublicKey::from(*public));
        // Compares with the identity in constant time.
        shared.was_contributory().then(|| {
            let mut secret = SharedSecret::zeroed();
            secret.expose_mut().copy_from_slice(shared.as_bytes());
            secret
        })
    }
}

//! Authenticated encryption: the trait, and what its backends share.

pub(crate) mod rust_crypto;

use crate::Secret;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use thiserror::Error;

pub use taupe_chacha::{Packet, TAG_LEN};

/// A message did not verify: a wrong key, counter or associated data, a
/// changed bit, or a buffer shorter than [`TAG_LEN`].
///
/// Deliberately one cause: telling them apart would help only an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the message is not authentic: it was changed, or sealed with another key or counter")]
pub struct NotAuthentic;

/// A ChaCha20-Poly1305 key for transport data (whitepaper §5.4.6).
///
/// The nonce is four zero bytes and the counter as 64 bits little-endian; there
/// is no associated data.
pub trait AeadKey: Send + Sync {
    /// Encrypts every packet in place.
    ///
    /// A packet shorter than [`TAG_LEN`] has no room for a tag: it is left as
    /// it is, and no receiver will take it. One of more than 256 GiB less 48 bytes, for
    /// which the cipher's blocks have no numbers (RFC 8439 §2.8), becomes zeros.
    fn seal(&self, packets: &mut [Packet<'_>]);

    /// Decrypts every packet in place; `authentic[i]` tells whether packet `i`
    /// verified.
    ///
    /// The text of a packet that did not verify is zeros afterwards. A packet
    /// shorter than [`TAG_LEN`] is not authentic. Where the two slices differ
    /// in length, packets without a flag are not opened, and flags without a
    /// packet become false.
    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]);
}

/// The AEADs of WireGuard.
///
/// In each function that seals, `data` is the plaintext followed by
/// [`TAG_LEN`] bytes of room for the tag; in each that opens, the ciphertext
/// followed by the tag, and the plaintext is `data[..data.len() - TAG_LEN]`
/// afterwards. Sealing leaves a shorter buffer as it is, opening refuses it.
/// After [`NotAuthentic`] the bytes of `data` are unspecified.
pub trait Aead: Send + Sync {
    /// Prepares a key for batches of transport data. The backend's copy of the
    /// key is zeroised when the box is dropped; the state of a running cipher,
    /// on the stack, is not in every backend (see the module of each).
    fn key(&self, key: &Secret<32>) -> Box<dyn AeadKey>;

    /// ChaCha20-Poly1305 with the associated data `ad`, as the handshake uses
    /// it (whitepaper §5.4, `AEAD(key, counter, plain text, auth text)`).
    fn seal_with(&self, key: &Secret<32>, counter: u64, ad: &[u8], data: &mut [u8]) {
        self.seal_with_nonce(key, &nonce(counter), ad, data);
    }

    /// Opens what [`seal_with`](Self::seal_with) sealed.
    ///
    /// # Errors
    ///
    /// [`NotAuthentic`] if `data` does not verify or is too short.
    fn open_with(
        &self,
        key: &Secret<32>,
        counter: u64,
        ad: &[u8],
        data: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        self.open_with_nonce(key, &nonce(counter), ad, data)
    }

    /// XChaCha20-Poly1305, as cookie replies use it (whitepaper §5.4.7,
    /// `XAEAD`).
    ///
    /// The Rust implementation serves every real backend: aws-lc-rs has none.
    fn xseal_with(&self, key: &Secret<32>, nonce: &[u8; 24], ad: &[u8], data: &mut [u8]) {
        let cipher = XChaCha20Poly1305::new(key.expose().into());
        rust_crypto::seal(&cipher, nonce.into(), ad, data);
    }

    /// Opens what [`xseal_with`](Self::xseal_with) sealed.
    ///
    /// # Errors
    ///
    /// [`NotAuthentic`] if `data` does not verify or is too short.
    fn xopen_with(
        &self,
        key: &Secret<32>,
        nonce: &[u8; 24],
        ad: &[u8],
        data: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let cipher = XChaCha20Poly1305::new(key.expose().into());
        rust_crypto::open(&cipher, nonce.into(), ad, data)
    }

    /// RFC 8439's interface, which published vectors need: WireGuard's nonces
    /// are only those that a counter makes.
    #[doc(hidden)]
    fn seal_with_nonce(&self, key: &Secret<32>, nonce: &[u8; 12], ad: &[u8], data: &mut [u8]);

    /// The inverse of `seal_with_nonce`.
    #[doc(hidden)]
    fn open_with_nonce(
        &self,
        key: &Secret<32>,
        nonce: &[u8; 12],
        ad: &[u8],
        data: &mut [u8],
    ) -> Result<(), NotAuthentic>;
}

/// Four zero bytes and the counter as 64 bits little-endian.
pub(crate) fn nonce(counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

/// Runs `open` on every packet that has a flag, and clears all other flags. No
/// text is left where it refuses.
pub(crate) fn open_each(
    packets: &mut [Packet<'_>],
    authentic: &mut [bool],
    mut open: impl FnMut(&mut Packet<'_>) -> bool,
) {
    authentic.fill(false);
    for (packet, authentic) in packets.iter_mut().zip(authentic) {
        *authentic = open(packet);
        if !*authentic && let Some((text, _)) = split_tag(packet.data) {
            text.fill(0);
        }
    }
}

/// Splits off the last [`TAG_LEN`] bytes.
pub(crate) fn split_tag(data: &mut [u8]) -> Option<(&mut [u8], &mut [u8; TAG_LEN])> {
    data.split_last_chunk_mut()
}

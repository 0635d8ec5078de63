//! The chaining key and the transcript hash, as in the whitepaper (§5.4).

use crate::error::Error;
use taupe_crypto::{Provider, Secret, TAG_LEN};

/// WireGuard's own labels: the published variants use no labels of their own.
const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";

#[derive(Clone)]
pub(crate) struct Transcript {
    crypto: &'static Provider,
    chaining_key: Secret<32>,
    hash: [u8; 32],
}

impl Transcript {
    /// C := HASH(CONSTRUCTION); H := HASH(HASH(C ‖ IDENTIFIER) ‖ S_r^pub), with the whole public
    /// key of the responder.
    pub(crate) fn new(crypto: &'static Provider, responder: &[u8]) -> Self {
        let chaining_key = crypto.hash.hash(&[CONSTRUCTION]);
        let hash = crypto.hash.hash(&[&chaining_key, IDENTIFIER]);
        let hash = crypto.hash.hash(&[&hash, responder]);
        Self {
            crypto,
            chaining_key: Secret::new(chaining_key),
            hash,
        }
    }

    /// H := HASH(H ‖ data)
    pub(crate) fn mix_hash(&mut self, data: &[u8]) {
        self.hash = self.crypto.hash.hash(&[&self.hash, data]);
    }

    /// C := KDF1(C, input)
    pub(crate) fn mix(&mut self, input: &[u8]) {
        let [chaining_key] = self.derive(input);
        self.chaining_key = chaining_key;
    }

    /// (C, k) := KDF2(C, input)
    pub(crate) fn mix_key(&mut self, input: &[u8]) -> Secret<32> {
        let [chaining_key, key] = self.derive(input);
        self.chaining_key = chaining_key;
        key
    }

    /// (C, τ, k) := KDF3(C, Q); H := HASH(H ‖ τ)
    pub(crate) fn mix_preshared(&mut self, preshared: &Secret<32>) -> Secret<32> {
        let [chaining_key, tau, key] = self.derive(preshared.expose());
        self.chaining_key = chaining_key;
        self.mix_hash(tau.expose());
        key
    }

    /// Returns AEAD(k, 0, text, H), and hashes it into H.
    pub(crate) fn seal(&mut self, key: &Secret<32>, text: &[u8]) -> Vec<u8> {
        let mut sealed = [text, &[0; TAG_LEN]].concat();
        self.crypto.aead.seal_with(key, 0, &self.hash, &mut sealed);
        self.mix_hash(&sealed);
        sealed
    }

    /// Decrypts a result of [`seal`](Self::seal).
    pub(crate) fn open(&mut self, key: &Secret<32>, sealed: &[u8]) -> Result<Vec<u8>, Error> {
        let mut text = sealed.to_vec();
        self.crypto.aead.open_with(key, 0, &self.hash, &mut text)?;
        self.mix_hash(sealed);
        text.truncate(text.len() - TAG_LEN);
        Ok(text)
    }

    /// Returns the initiator's sending key, then the responder's: KDF2(C, ε)
    pub(crate) fn split(&self) -> [Secret<32>; 2] {
        self.derive(&[])
    }

    /// KDFn: HMAC in the extract-and-expand form of HKDF (whitepaper §5.4).
    fn derive<const N: usize>(&self, input: &[u8]) -> [Secret<32>; N] {
        let hash = self.crypto.hash;
        let extracted = hash.hmac(self.chaining_key.expose(), &[input]);
        let mut keys = [const { Secret::zeroed() }; N];
        for i in 0..N {
            let before = i.checked_sub(1).map_or(&[][..], |last| keys[last].expose());
            let round = [i as u8 + 1];
            keys[i] = hash.hmac(extracted.expose(), &[before, &round]);
        }
        keys
    }
}

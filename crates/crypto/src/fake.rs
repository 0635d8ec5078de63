//! Stand-ins for simulation: see [`FAKE`](crate::FAKE).
//!
//! Everything rests on one 64-bit hash that multiplies 64 by 64 bits and folds
//! the product, as wyhash and its descendants do: fast, good enough that two
//! inputs of a simulation do not collide by accident, and no obstacle to anyone
//! who wants them to.

use crate::{
    Aead, AeadKey, DecapsulationKey, Dh, EncapsulationKey, Hash, InvalidKemInput, Kem,
    KemParameters, NotAuthentic, Packet, Secret, SharedSecret, TAG_LEN,
    aead::{nonce, open_each, split_tag},
    hash::assert_mac_key,
    kem::check_len,
};

/// The backend.
pub(crate) struct Fake;

impl Aead for Fake {
    fn key(&self, key: &Secret<32>) -> Box<dyn AeadKey> {
        Box::new(Key::new(key))
    }

    fn seal_with_nonce(&self, key: &Secret<32>, nonce: &[u8; 12], ad: &[u8], data: &mut [u8]) {
        Key::new(key).seal(nonce, ad, data);
    }

    fn open_with_nonce(
        &self,
        key: &Secret<32>,
        nonce: &[u8; 12],
        ad: &[u8],
        data: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        Key::new(key).open(nonce, ad, data)
    }

    fn xseal_with(&self, key: &Secret<32>, nonce: &[u8; 24], ad: &[u8], data: &mut [u8]) {
        Key::new(key).seal(nonce, ad, data);
    }

    fn xopen_with(
        &self,
        key: &Secret<32>,
        nonce: &[u8; 24],
        ad: &[u8],
        data: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        Key::new(key).open(nonce, ad, data)
    }
}

struct Key(u64);

impl Key {
    fn new(key: &Secret<32>) -> Self {
        Self(mix(domain::AEAD, key.expose()))
    }

    fn seal(&self, nonce: &[u8], ad: &[u8], data: &mut [u8]) {
        let Some((text, tag)) = split_tag(data) else {
            return;
        };
        let message = mix(self.0, nonce);
        mask(message, text);
        *tag = authenticate(message, ad, text);
    }

    fn open(&self, nonce: &[u8], ad: &[u8], data: &mut [u8]) -> Result<(), NotAuthentic> {
        let (text, tag) = split_tag(data).ok_or(NotAuthentic)?;
        let message = mix(self.0, nonce);
        if *tag != authenticate(message, ad, text) {
            return Err(NotAuthentic);
        }
        mask(message, text);
        Ok(())
    }
}

impl AeadKey for Key {
    fn seal(&self, packets: &mut [Packet<'_>]) {
        for packet in packets {
            self.seal(&nonce(packet.counter), &[], packet.data);
        }
    }

    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        open_each(packets, authentic, |packet| {
            self.open(&nonce(packet.counter), &[], packet.data).is_ok()
        });
    }
}

/// The tag of a ciphertext.
fn authenticate(message: u64, ad: &[u8], ciphertext: &[u8]) -> [u8; TAG_LEN] {
    spread(mix(mix(message, ad), ciphertext))
}

/// Changes every byte of `text`, and changes it back.
fn mask(message: u64, text: &mut [u8]) {
    let word = (fold(message, CONSTANTS[3]) | 0x0101_0101_0101_0101).to_le_bytes();
    let mut words = text.chunks_exact_mut(word.len());
    for chunk in &mut words {
        for (byte, mask) in chunk.iter_mut().zip(word) {
            *byte ^= mask;
        }
    }
    for (byte, mask) in words.into_remainder().iter_mut().zip(word) {
        *byte ^= mask;
    }
}

impl Dh for Fake {
    fn public(&self, private: &[u8; 32]) -> [u8; 32] {
        spread(mix(domain::DH, private))
    }

    fn agree(&self, private: &[u8; 32], public: &[u8; 32]) -> Option<SharedSecret> {
        if *public == [0; 32] {
            return None;
        }
        let own = self.public(private);
        let (low, high) = (own.min(*public), own.max(*public));
        let shared = mix(mix(domain::DH, &low), &high);
        Some(SharedSecret::new(spread(shared)))
    }
}

impl Hash for Fake {
    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        spread(mix(domain::HASH, &parts.concat()))
    }

    fn mac(&self, key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
        assert_mac_key(key);
        spread(mix(mix(domain::MAC, key), &parts.concat()))
    }

    fn hmac(&self, key: &[u8], parts: &[&[u8]]) -> Secret<32> {
        Secret::new(spread(mix(mix(domain::HMAC, key), &parts.concat())))
    }
}

/// Accepts every encapsulation key of the right length.
impl Kem for Fake {
    fn decapsulation_key(
        &self,
        parameters: KemParameters,
        seed: &Secret<64>,
    ) -> Box<dyn DecapsulationKey> {
        let seed = mix(domain::KEM, seed.expose());
        let bytes = stretch(seed, parameters.encapsulation_key_len());
        let public = KemKey::new(parameters, &bytes);
        Box::new(KemPair {
            seed,
            bytes,
            public,
        })
    }

    fn encapsulation_key(
        &self,
        parameters: KemParameters,
        bytes: &[u8],
    ) -> Result<Box<dyn EncapsulationKey>, InvalidKemInput> {
        let expected = parameters.encapsulation_key_len();
        check_len("the encapsulation key", bytes, expected)?;
        Ok(Box::new(KemKey::new(parameters, bytes)))
    }
}

struct KemPair {
    seed: u64,
    bytes: Vec<u8>,
    public: KemKey,
}

struct KemKey {
    parameters: KemParameters,
    hash: u64,
}

impl DecapsulationKey for KemPair {
    fn encapsulation_key(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    fn decapsulate(&self, ciphertext: &[u8]) -> Result<SharedSecret, InvalidKemInput> {
        let expected = self.public.parameters.ciphertext_len();
        check_len("the ciphertext", ciphertext, expected)?;
        // A ciphertext begins with the coins, masked.
        let mut coins = Secret::<32>::zeroed();
        for (coin, byte) in coins.expose_mut().iter_mut().zip(ciphertext) {
            *coin = *byte;
        }
        mask(self.public.hash, coins.expose_mut());
        let (again, shared) = self.public.encapsulate(&coins);
        Ok(if again == ciphertext {
            shared
        } else {
            SharedSecret::new(spread(mix(self.seed, ciphertext)))
        })
    }
}

impl KemKey {
    fn new(parameters: KemParameters, bytes: &[u8]) -> Self {
        Self {
            parameters,
            hash: mix(domain::KEM, bytes),
        }
    }
}

impl EncapsulationKey for KemKey {
    fn encapsulate(&self, coins: &Secret<32>) -> (Vec<u8>, SharedSecret) {
        let shared = mix(self.hash, coins.expose());
        let mut ciphertext = coins.expose().to_vec();
        mask(self.hash, &mut ciphertext);
        ciphertext.extend(stretch(
            shared,
            self.parameters.ciphertext_len() - ciphertext.len(),
        ));
        (
            ciphertext,
            SharedSecret::new(spread(fold(shared, CONSTANTS[2]))),
        )
    }
}

/// Initial values of hashes, so that one function's output is not another's.
mod domain {
    pub(super) const AEAD: u64 = 1;
    pub(super) const DH: u64 = 2;
    pub(super) const HASH: u64 = 3;
    pub(super) const MAC: u64 = 4;
    pub(super) const HMAC: u64 = 5;
    pub(super) const KEM: u64 = 6;
}

/// Odd 64-bit constants with about as many ones as zeros: the fractional parts
/// of the square roots of 2, 3, 5 and 7 (as in SHA-512), made odd.
const CONSTANTS: [u64; 4] = [
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
];

/// Hashes `bytes`, continuing from `seed`.
fn mix(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = fold(seed ^ CONSTANTS[0], bytes.len() as u64 ^ CONSTANTS[1]);
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        state = absorb(state, block);
    }
    if !rest.is_empty() {
        let mut block = [0; 16];
        for (to, from) in block.iter_mut().zip(rest) {
            *to = *from;
        }
        state = absorb(state, &block);
    }
    fold(state, CONSTANTS[2])
}

fn absorb(state: u64, block: &[u8; 16]) -> u64 {
    let block = u128::from_le_bytes(*block);
    fold(state ^ block as u64, (block >> 64) as u64 ^ CONSTANTS[1])
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// `N` bytes that depend on all of `state`.
fn spread<const N: usize>(state: u64) -> [u8; N] {
    let mut output = [0; N];
    fill(state, &mut output);
    output
}

/// `len` bytes that depend on all of `state`.
fn stretch(state: u64, len: usize) -> Vec<u8> {
    let mut output = vec![0; len];
    fill(state, &mut output);
    output
}

fn fill(mut state: u64, output: &mut [u8]) {
    for chunk in output.chunks_mut(8) {
        state = state.wrapping_add(CONSTANTS[0]);
        let word = fold(state, state ^ CONSTANTS[3]).to_le_bytes();
        for (to, from) in chunk.iter_mut().zip(word) {
            *to = from;
        }
    }
}

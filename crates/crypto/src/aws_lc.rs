//! ChaCha20-Poly1305, X25519 and ML-KEM from AWS-LC.
//!
//! AWS-LC keeps key objects on its own heap and clears every block when it is
//! freed (`OPENSSL_free`), so keys are zeroised with the object that holds
//! them. Its ciphers do not clear their stack, where they leave keys: it is erased after each batch
//! here, and after a handshake by the caller. Registers are not cleared.

mod dh;
#[cfg(target_arch = "x86_64")]
mod hash;
// Where AWS-LC has vector code for ML-KEM, and its crate has the bindings
// (`Cargo.toml` asks for them in the same words).
#[cfg(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod kem;
#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod kem {
    pub(crate) use crate::kem::RustCryptoMlKem as AwsLcMlKem;
}

mod short;

pub(crate) use kem::AwsLcMlKem;

use crate::{
    Aead, AeadKey, NotAuthentic, Packet, Secret,
    aead::{nonce, open_each, split_tag},
    erase_dead_stack,
};
use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use taupe_chacha::{Avx2Key, Avx512Key, Grouping};

/// Stack that a call of AWS-LC's ciphers uses, at most, in bytes.
const CIPHER_STACK: usize = 2 << 10;

/// The backend.
pub(crate) struct AwsLc {
    pub(crate) batches: Batches,
}

/// The implementation that seals and opens batches of packets. X25519 with prepared keys uses
/// AVX-512 only if this does.
#[derive(Clone, Copy)]
pub(crate) enum Batches {
    /// `taupe-chacha`, if the processor has the instructions, with packets grouped where that is
    /// faster.
    Fastest,
    /// AWS-LC, one packet after the other.
    Single,
    /// `taupe-chacha`, with packets grouped also where that is slower.
    #[cfg(feature = "testing")]
    Grouped,
    /// `taupe-chacha` with AVX2, also if the processor has AVX-512.
    #[cfg(feature = "testing")]
    Avx2,
}

impl Batches {
    /// The grouping of packets with AVX-512, or `None` if AVX-512 is not used.
    fn avx512(self) -> Option<Grouping> {
        match self {
            Self::Fastest => Some(Grouping::Fastest),
            Self::Single => None,
            #[cfg(feature = "testing")]
            Self::Grouped => Some(Grouping::Always),
            #[cfg(feature = "testing")]
            Self::Avx2 => None,
        }
    }

    /// Returns whether AVX2 or NEON is used if AVX-512 is not.
    fn has_vectors(self) -> bool {
        !matches!(self, Self::Single)
    }
}

impl Aead for AwsLc {
    fn key(&self, key: &Secret<32>) -> Box<dyn AeadKey> {
        if let Some(grouping) = self.batches.avx512()
            && let Some(key) = Avx512Key::new(key.expose(), grouping)
        {
            return Box::new(key);
        }
        if self.batches.has_vectors() {
            if let Some(key) = Avx2Key::new(key.expose()) {
                return Box::new(key);
            }
            if let Some(key) = short::ShortAndLong::new(key) {
                return Box::new(key);
            }
        }
        Box::new(Key::new(key))
    }

    fn seal_with_nonce(&self, key: &Secret<32>, nonce: &[u8; 12], ad: &[u8], data: &mut [u8]) {
        Key::new(key).seal(*nonce, ad, data);
    }

    fn open_with_nonce(
        &self,
        key: &Secret<32>,
        nonce: &[u8; 12],
        ad: &[u8],
        data: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        Key::new(key).open(*nonce, ad, data)
    }
}

pub(crate) struct Key(LessSafeKey);

impl Key {
    pub(crate) fn new(key: &Secret<32>) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.expose())
            .expect("ChaCha20-Poly1305 takes every key of 32 bytes");
        Self(LessSafeKey::new(key))
    }

    fn seal(&self, nonce: [u8; 12], ad: &[u8], data: &mut [u8]) {
        let Some((text, tag)) = split_tag(data) else {
            return;
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let computed = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(ad), text)
            .ok()
            .and_then(|computed| computed.as_ref().try_into().ok());
        match computed {
            Some(computed) => *tag = computed,
            // Only beyond 256 GiB. What cannot be sealed must not leave in clear.
            None => data.fill(0),
        }
    }

    fn open(&self, nonce: [u8; 12], ad: &[u8], data: &mut [u8]) -> Result<(), NotAuthentic> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0
            .open_in_place(nonce, Aad::from(ad), data)
            .map(|_| ())
            .map_err(|_| NotAuthentic)
    }
}

impl AeadKey for Key {
    fn seal(&self, packets: &mut [Packet<'_>]) {
        for packet in packets {
            self.seal(nonce(packet.counter), &[], packet.data);
        }
        erase_dead_stack::<CIPHER_STACK>();
    }

    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        open_each(packets, authentic, |packet| {
            self.open(nonce(packet.counter), &[], packet.data).is_ok()
        });
        erase_dead_stack::<CIPHER_STACK>();
    }
}

impl AeadKey for Avx512Key {
    fn seal(&self, packets: &mut [Packet<'_>]) {
        Self::seal(self, packets);
    }

    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        Self::open(self, packets, authentic);
    }
}

impl AeadKey for Avx2Key {
    fn seal(&self, packets: &mut [Packet<'_>]) {
        Self::seal(self, packets);
    }

    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        Self::open(self, packets, authentic);
    }
}

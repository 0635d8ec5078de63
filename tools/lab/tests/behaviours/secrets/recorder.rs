//! A cryptographic provider that records the secrets of its handshakes and sessions.
//!
//! Two sides of a handshake compute the same secrets. So a peer that uses this provider learns all
//! secrets of the device at the other end, except that device's private keys.

use std::cell::RefCell;
use taupe_protocol::crypto::{
    Aead, AeadKey, Agreement, BASE_POINT, DecapsulationKey, Dh, EncapsulationKey, Hash,
    InvalidKemInput, Kem, KemParameters, NotAuthentic, Provider, Secret, SharedSecret,
    default_provider,
};

/// A provider for devices that are driven by one thread each.
pub(super) static RECORDER: Provider = Provider {
    name: "recorder",
    aead: &Recorder,
    dh: &Recorder,
    hash: &Recorder,
    kem: &Recorder,
};

/// A recorded secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) origin: Origin,
    pub(super) value: [u8; 32],
}

/// The operation that computed a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A key of a session.
    Session,
    /// An agreement of X25519.
    Agreement,
    /// A key derivation: a chaining key, or a key of a handshake message.
    Derivation,
    /// An encapsulation of ML-KEM.
    Encapsulation,
}

#[derive(Default)]
struct Records {
    secrets: Vec<Recorded>,
    /// Values that everybody can compute: hashes, and chaining keys before the first agreement.
    public: Vec<[u8; 32]>,
}

thread_local! {
    static RECORDS: RefCell<Records> = RefCell::default();
}

/// Returns the secrets that this thread has recorded since the last call.
pub(super) fn take() -> Vec<Recorded> {
    RECORDS.with_borrow_mut(|it| {
        it.public.clear();
        std::mem::take(&mut it.secrets)
    })
}

fn record(origin: Origin, value: &[u8; 32]) {
    let secret = Recorded {
        origin,
        value: *value,
    };
    RECORDS.with_borrow_mut(|it| {
        // Zeros are the absence of a secret.
        if *value != [0; 32] && !it.secrets.contains(&secret) {
            it.secrets.push(secret);
        }
    });
}

fn record_agreement(agreement: &Agreement<'_>, shared: Option<&SharedSecret>) {
    // Public keys are computed by agreements with the base point.
    if let Some(shared) = shared.filter(|_| *agreement.public != BASE_POINT) {
        record(Origin::Agreement, shared.expose());
    }
}

struct Recorder;

impl Aead for Recorder {
    fn key(&self, key: &Secret<32>) -> Box<dyn AeadKey> {
        record(Origin::Session, key.expose());
        default_provider().aead.key(key)
    }

    fn seal_with_nonce(&self, key: &Secret<32>, nonce: &[u8; 12], ad: &[u8], data: &mut [u8]) {
        let aead = default_provider().aead;
        aead.seal_with_nonce(key, nonce, ad, data);
    }

    fn open_with_nonce(
        &self,
        key: &Secret<32>,
        nonce: &[u8; 12],
        ad: &[u8],
        data: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let aead = default_provider().aead;
        aead.open_with_nonce(key, nonce, ad, data)
    }
}

impl Dh for Recorder {
    fn public(&self, private: &[u8; 32]) -> [u8; 32] {
        default_provider().dh.public(private)
    }

    fn agree(&self, private: &[u8; 32], public: &[u8; 32]) -> Option<SharedSecret> {
        let shared = default_provider().dh.agree(private, public);
        record_agreement(&Agreement { private, public }, shared.as_ref());
        shared
    }

    fn agree_many(&self, agreements: &[Agreement<'_>], shared: &mut [Option<SharedSecret>]) {
        default_provider().dh.agree_many(agreements, shared);
        for (agreement, shared) in agreements.iter().zip(shared) {
            record_agreement(agreement, shared.as_ref());
        }
    }

    fn width(&self) -> usize {
        default_provider().dh.width()
    }
}

impl Hash for Recorder {
    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        let hash = default_provider().hash.hash(parts);
        RECORDS.with_borrow_mut(|it| it.public.push(hash));
        hash
    }

    fn mac(&self, key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
        default_provider().hash.mac(key, parts)
    }

    fn hmac(&self, key: &[u8], parts: &[&[u8]]) -> Secret<32> {
        default_provider().hash.hmac(key, parts)
    }

    fn kdf(&self, key: &[u8; 32], input: &[u8], outputs: &mut [Secret<32>]) {
        default_provider().hash.kdf(key, input, outputs);
        let is_secret = RECORDS.with_borrow(|it| {
            let is_input = |secret: &Recorded| secret.value == *input;
            !it.public.contains(key) || it.secrets.iter().any(is_input)
        });
        for output in outputs.iter().map(Secret::expose) {
            if is_secret {
                record(Origin::Derivation, output);
            } else {
                RECORDS.with_borrow_mut(|it| it.public.push(*output));
            }
        }
    }
}

impl Kem for Recorder {
    fn decapsulation_key(
        &self,
        parameters: KemParameters,
        seed: &Secret<64>,
    ) -> Box<dyn DecapsulationKey> {
        let kem = default_provider().kem;
        Box::new(RecorderKey(kem.decapsulation_key(parameters, seed)))
    }

    fn encapsulation_key(
        &self,
        parameters: KemParameters,
        bytes: &[u8],
    ) -> Result<Box<dyn EncapsulationKey>, InvalidKemInput> {
        let key = default_provider()
            .kem
            .encapsulation_key(parameters, bytes)?;
        Ok(Box::new(RecorderKey(key)))
    }
}

/// A key of ML-KEM, private or public.
struct RecorderKey<K: ?Sized>(Box<K>);

impl DecapsulationKey for RecorderKey<dyn DecapsulationKey> {
    fn encapsulation_key(&self) -> Vec<u8> {
        self.0.encapsulation_key()
    }

    fn decapsulate(&self, ciphertext: &[u8]) -> Result<SharedSecret, InvalidKemInput> {
        let shared = self.0.decapsulate(ciphertext)?;
        record(Origin::Encapsulation, shared.expose());
        Ok(shared)
    }
}

impl EncapsulationKey for RecorderKey<dyn EncapsulationKey> {
    fn encapsulate(&self, coins: &Secret<32>) -> (Vec<u8>, SharedSecret) {
        let (ciphertext, shared) = self.0.encapsulate(coins);
        record(Origin::Encapsulation, shared.expose());
        (ciphertext, shared)
    }
}

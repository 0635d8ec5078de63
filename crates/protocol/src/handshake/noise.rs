//! Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s (whitepaper §5.4.1–5.4.5), independent of peers, indices
//! and MACs.
//!
//! Both sides have a chaining key and a transcript hash (`Transcript`). Each message is a
//! sequence of mixes, quoted from the paper above the line that does them. A message that fails
//! to verify changes nothing: the new state is used only after success.

use arrayvec::ArrayVec;
use taupe_crypto::{Agreement, BASE_POINT, NotAuthentic, Provider, Secret, SharedSecret, TAG_LEN};
use thiserror::Error;

use crate::key::{PresharedKey, PrivateKey, PublicKey};
use crate::time::Tai64N;

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";

/// Reason for refusing a handshake message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NoiseError {
    /// The message was made for other keys, or changed in transit.
    #[error("the message does not verify")]
    NotAuthentic,
    /// A Diffie-Hellman result is all zeros, so a public key is of low order.
    #[error("a public key of low order")]
    LowOrder,
}

impl From<NotAuthentic> for NoiseError {
    fn from(_: NotAuthentic) -> Self {
        Self::NotAuthentic
    }
}

/// The keys of a session, as this side uses them.
pub struct TransportKeys {
    /// Encrypts the packets that this side sends.
    pub send: Secret<32>,
    /// Decrypts the packets that the other side sends.
    pub receive: Secret<32>,
}

/// This side's static key pair.
pub struct StaticKeys {
    /// The private key.
    pub private: PrivateKey,
    /// Its public key.
    pub public: PublicKey,
}

impl StaticKeys {
    /// Derives the public key of `private`.
    #[must_use]
    pub fn new(crypto: &Provider, private: PrivateKey) -> Self {
        let public = PublicKey(crypto.dh.public(private.expose()));
        Self { private, public }
    }
}

/// Values derived from this side's private key and a peer's public key. Reusing them saves a
/// scalar multiplication in each handshake with that peer.
pub struct Precomputed {
    /// DH(S_i, S_r), of the two static keys.
    pub(crate) static_static: SharedSecret,
    /// The peer's static public key.
    pub(crate) remote: [u8; 32],
}

impl Precomputed {
    /// Computes the Diffie-Hellman result of the two static keys.
    ///
    /// # Errors
    /// [`NoiseError::LowOrder`] if `remote` is of low order.
    pub fn new(
        crypto: &Provider,
        local: &StaticKeys,
        remote: &PublicKey,
    ) -> Result<Self, NoiseError> {
        let agreement = Agreement {
            private: local.private.expose(),
            public: &remote.0,
        };
        let [static_static] = agree(crypto, [agreement])?;
        Ok(Self {
            static_static,
            remote: remote.0,
        })
    }
}

/// The encrypted fields of an initiation.
pub struct InitiationFields {
    /// Ephemeral public key.
    pub ephemeral: [u8; 32],
    /// Encrypted static public key.
    pub static_key: [u8; 32 + TAG_LEN],
    /// Encrypted timestamp.
    pub timestamp: [u8; 12 + TAG_LEN],
}

/// The encrypted fields of a response.
pub struct ResponseFields {
    /// Ephemeral public key.
    pub ephemeral: [u8; 32],
    /// Encrypted empty plaintext.
    pub empty: [u8; TAG_LEN],
}

/// Initiator state until the response arrives.
pub struct Initiator {
    transcript: Transcript,
    ephemeral: Secret<32>,
}

impl Initiator {
    /// Makes an initiation to `remote`. `precomputed` must be made from `local` and `remote`;
    /// `ephemeral` is 32 fresh random bytes.
    pub fn start(
        crypto: &Provider,
        local: &StaticKeys,
        remote: &PublicKey,
        precomputed: &Precomputed,
        ephemeral: Secret<32>,
        timestamp: Tai64N,
    ) -> Result<(Self, InitiationFields), NoiseError> {
        // If the keys differed, only the other side would notice: it would refuse the message.
        debug_assert_eq!(remote.0, precomputed.remote);
        // C := HASH(CONSTRUCTION); H := HASH(HASH(C ‖ IDENTIFIER) ‖ S_r^pub)
        let mut transcript = Transcript::new(crypto, CONSTRUCTION, IDENTIFIER, &remote.0);

        // msg.ephemeral := E_i^pub; C := KDF1(C, E_i^pub); H := HASH(H ‖ msg.ephemeral)
        let agreement = Agreement {
            private: ephemeral.expose(),
            public: &precomputed.remote,
        };
        let (shared, public) = agree_beside_public(crypto, &ephemeral, agreement)?;
        let public = public.unwrap_or_else(|| crypto.dh.public(ephemeral.expose()));
        transcript.mix_ephemeral(crypto, &public);

        // (C, k) := KDF2(C, DH(E_i, S_r)); msg.static := AEAD(k, 0, S_i^pub, H)
        let key = transcript.mix_key(crypto, &shared);
        let mut static_key = [0; 32 + TAG_LEN];
        static_key[..32].copy_from_slice(&local.public.0);
        transcript.seal(crypto, &key, &mut static_key);

        // (C, k) := KDF2(C, DH(S_i, S_r)); msg.timestamp := AEAD(k, 0, TIMESTAMP(), H)
        let key = transcript.mix_key(crypto, &precomputed.static_static);
        let mut sealed_timestamp = [0; 12 + TAG_LEN];
        sealed_timestamp[..12].copy_from_slice(&timestamp.0);
        transcript.seal(crypto, &key, &mut sealed_timestamp);

        let fields = InitiationFields {
            ephemeral: public,
            static_key,
            timestamp: sealed_timestamp,
        };
        let state = Self {
            transcript,
            ephemeral,
        };
        Ok((state, fields))
    }

    /// Verifies a response and derives the session's keys. A forged response changes nothing,
    /// because the state is only read.
    pub fn finish(
        &self,
        crypto: &Provider,
        local: &StaticKeys,
        preshared_key: &PresharedKey,
        response: &ResponseFields,
    ) -> Result<TransportKeys, NoiseError> {
        let mut transcript = self.transcript.clone();

        // C := KDF1(C, E_r^pub); H := HASH(H ‖ msg.ephemeral)
        transcript.mix_ephemeral(crypto, &response.ephemeral);
        // C := KDF1(C, DH(E_i, E_r)); C := KDF1(C, DH(S_i, E_r))
        let owns = [self.ephemeral.expose(), local.private.expose()];
        let public = &response.ephemeral;
        let agreements = owns.map(|private| Agreement { private, public });
        for shared in agree(crypto, agreements)? {
            transcript.mix_secret(crypto, &shared);
        }

        // (C, τ, k) := KDF3(C, Q); H := HASH(H ‖ τ); msg.empty = AEAD(k, 0, ε, H)
        let key = transcript.mix_preshared_key(crypto, preshared_key);
        transcript.open(crypto, &key, &mut response.empty.clone())?;

        // (T_i^send = T_r^recv, T_i^recv = T_r^send) := KDF2(C, ε)
        let (send, receive) = transcript.split(crypto);
        Ok(TransportKeys { send, receive })
    }
}

/// The most agreements that are computed at once for an initiation.
pub const AGREEMENTS: usize = 2;

/// Results of the agreements of an initiation, each `None` if it was not needed or a public key is
/// of low order.
pub type SharedSecrets = [Option<SharedSecret>; AGREEMENTS];

/// An initiation before its static key is decrypted, to be opened together with others.
pub struct SealedInitiation {
    message: InitiationFields,
    ephemeral: Secret<32>,
}

impl SealedInitiation {
    /// Takes an initiation. `ephemeral` is as for [`Claim::open`].
    #[must_use]
    pub fn new(message: InitiationFields, ephemeral: Secret<32>) -> Self {
        Self { message, ephemeral }
    }

    /// Returns the agreements whose results [`Self::open`] takes.
    #[must_use]
    pub fn agreements<'a>(
        &'a self,
        crypto: &Provider,
        local: &'a StaticKeys,
    ) -> ArrayVec<Agreement<'a>, AGREEMENTS> {
        let mut agreements = ArrayVec::new();
        agreements.push(Agreement {
            private: local.private.expose(),
            public: &self.message.ephemeral,
        });
        agreements.extend(public_beside(crypto, &self.ephemeral));
        agreements
    }

    /// Decrypts the static key of an initiation to `local`.
    ///
    /// # Errors
    /// [`NoiseError`].
    pub fn open(
        self,
        crypto: &Provider,
        local: &StaticKeys,
        [shared, public]: SharedSecrets,
    ) -> Result<Claim, NoiseError> {
        let Self { message, ephemeral } = self;
        // C := HASH(CONSTRUCTION); H := HASH(HASH(C ‖ IDENTIFIER) ‖ S_r^pub)
        let mut transcript = Transcript::new(crypto, CONSTRUCTION, IDENTIFIER, &local.public.0);
        // C := KDF1(C, E_i^pub); H := HASH(H ‖ msg.ephemeral)
        transcript.mix_ephemeral(crypto, &message.ephemeral);

        // (C, k) := KDF2(C, DH(S_r, E_i)); msg.static = AEAD(k, 0, S_i^pub, H)
        let shared = shared.ok_or(NoiseError::LowOrder)?;
        let key = transcript.mix_key(crypto, &shared);
        let mut static_key = message.static_key;
        transcript.open(crypto, &key, &mut static_key)?;

        let mut public_key = [0; 32];
        public_key.copy_from_slice(&static_key[..32]);
        Ok(Claim {
            transcript,
            ephemeral: OwnEphemeral {
                private: ephemeral,
                public: public.map(|it| *it.expose()),
            },
            initiator_ephemeral: message.ephemeral,
            timestamp: message.timestamp,
            public_key: PublicKey(public_key),
        })
    }
}

/// An initiation whose static key has been decrypted, before proof that the sender has the
/// private key.
///
/// The caller looks up the peer by [`Claim::public_key`] and continues with [`Claim::verify`]. It
/// may store the claim while it fetches the peer from elsewhere.
pub struct Claim {
    transcript: Transcript,
    ephemeral: OwnEphemeral,
    initiator_ephemeral: [u8; 32],
    timestamp: [u8; 12 + TAG_LEN],
    public_key: PublicKey,
}

impl Claim {
    /// Decrypts the static key of an initiation to `local`. `ephemeral` is 32 fresh random bytes,
    /// which become the private key of a response.
    #[cfg(feature = "testing")]
    pub fn open(
        crypto: &Provider,
        local: &StaticKeys,
        message: InitiationFields,
        ephemeral: Secret<32>,
    ) -> Result<Self, NoiseError> {
        let sealed = SealedInitiation::new(message, ephemeral);
        let mut shared = [const { None }; AGREEMENTS];
        (crypto.dh).agree_many(&sealed.agreements(crypto, local), &mut shared);
        sealed.open(crypto, local, shared)
    }

    /// Returns the static key that the sender claims to have.
    #[must_use]
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Verifies that the sender has the private key of [`Self::public_key`]. `precomputed` must
    /// be made from the local keys and that key.
    pub fn verify(
        mut self,
        crypto: &Provider,
        precomputed: &Precomputed,
    ) -> Result<Responder, NoiseError> {
        // (C, k) := KDF2(C, DH(S_r, S_i)); msg.timestamp = AEAD(k, 0, TIMESTAMP(), H)
        let static_static = &precomputed.static_static;
        let key = self.transcript.mix_key(crypto, static_static);
        let mut sealed_timestamp = self.timestamp;
        self.transcript.open(crypto, &key, &mut sealed_timestamp)?;
        let mut timestamp = [0; 12];
        timestamp.copy_from_slice(&sealed_timestamp[..12]);
        Ok(Responder {
            transcript: self.transcript,
            ephemeral: self.ephemeral,
            initiator_ephemeral: self.initiator_ephemeral,
            initiator: precomputed.remote,
            timestamp: Tai64N(timestamp),
        })
    }
}

/// The responder's ephemeral keys.
struct OwnEphemeral {
    private: Secret<32>,
    /// `None` if it was not computed beside the first agreement. The response computes it then.
    public: Option<[u8; 32]>,
}

/// A verified initiation.
pub struct Responder {
    transcript: Transcript,
    ephemeral: OwnEphemeral,
    initiator_ephemeral: [u8; 32],
    initiator: [u8; 32],
    timestamp: Tai64N,
}

impl Responder {
    /// Returns the timestamp. It must be greater than any earlier one from this peer.
    #[must_use]
    pub fn timestamp(&self) -> Tai64N {
        self.timestamp
    }

    /// Makes the response and derives the session's keys.
    ///
    /// # Errors
    /// [`NoiseError::LowOrder`] if a key of the initiator is of low order.
    #[cfg(feature = "testing")]
    pub fn respond(
        self,
        crypto: &Provider,
        preshared_key: &PresharedKey,
    ) -> Result<(ResponseFields, TransportKeys), NoiseError> {
        let mut shared = [const { None }; AGREEMENTS];
        crypto.dh.agree_many(&self.agreements(), &mut shared);
        self.respond_with(crypto, preshared_key, shared)
    }

    /// Returns the agreements whose results [`Self::respond_with`] takes.
    #[must_use]
    pub fn agreements(&self) -> [Agreement<'_>; AGREEMENTS] {
        let private = self.ephemeral.private.expose();
        let remotes = [&self.initiator_ephemeral, &self.initiator];
        remotes.map(|public| Agreement { private, public })
    }

    /// Like [`Self::respond`], with the results of [`Self::agreements`].
    ///
    /// # Errors
    /// [`NoiseError::LowOrder`] if one of them is `None`.
    pub fn respond_with(
        mut self,
        crypto: &Provider,
        preshared_key: &PresharedKey,
        shared: SharedSecrets,
    ) -> Result<(ResponseFields, TransportKeys), NoiseError> {
        // C := KDF1(C, E_r^pub); H := HASH(H ‖ msg.ephemeral)
        let OwnEphemeral { private, public } = self.ephemeral;
        let public = public.unwrap_or_else(|| crypto.dh.public(private.expose()));
        self.transcript.mix_ephemeral(crypto, &public);
        // C := KDF1(C, DH(E_r, E_i)); C := KDF1(C, DH(E_r, S_i))
        for shared in shared {
            let shared = shared.ok_or(NoiseError::LowOrder)?;
            self.transcript.mix_secret(crypto, &shared);
        }
        // (C, τ, k) := KDF3(C, Q); H := HASH(H ‖ τ); msg.empty := AEAD(k, 0, ε, H)
        let key = self.transcript.mix_preshared_key(crypto, preshared_key);
        let mut empty = [0; TAG_LEN];
        self.transcript.seal(crypto, &key, &mut empty);

        // (T_i^send = T_r^recv, T_i^recv = T_r^send) := KDF2(C, ε)
        let (receive, send) = self.transcript.split(crypto);
        let fields = ResponseFields {
            ephemeral: public,
            empty,
        };
        Ok((fields, TransportKeys { send, receive }))
    }
}

/// Computes agreements that do not depend on each other.
pub(crate) fn agree<const N: usize>(
    crypto: &Provider,
    agreements: [Agreement<'_>; N],
) -> Result<[SharedSecret; N], NoiseError> {
    let mut shared = [const { None }; N];
    crypto.dh.agree_many(&agreements, &mut shared);
    let mut all = [const { SharedSecret::zeroed() }; N];
    for (place, shared) in all.iter_mut().zip(shared) {
        *place = shared.ok_or(NoiseError::LowOrder)?;
    }
    Ok(all)
}

/// Computes an agreement, and the public key of `ephemeral` if that takes no more time.
pub(crate) fn agree_beside_public(
    crypto: &Provider,
    ephemeral: &Secret<32>,
    agreement: Agreement<'_>,
) -> Result<(SharedSecret, Option<[u8; 32]>), NoiseError> {
    let Some(public) = public_beside(crypto, ephemeral) else {
        let [shared] = agree(crypto, [agreement])?;
        return Ok((shared, None));
    };
    let [shared, public] = agree(crypto, [agreement, public])?;
    Ok((shared, Some(*public.expose())))
}

/// Returns the agreement that computes the public key of `ephemeral`, if it takes no more time
/// beside another agreement.
fn public_beside<'a>(crypto: &Provider, ephemeral: &'a Secret<32>) -> Option<Agreement<'a>> {
    (crypto.dh.width() > 1).then(|| Agreement {
        private: ephemeral.expose(),
        public: &BASE_POINT,
    })
}

/// The chaining key C and the hash H of all fields so far.
#[derive(Clone)]
pub(crate) struct Transcript {
    chaining_key: Secret<32>,
    hash: [u8; 32],
}

impl Transcript {
    pub(crate) fn new(
        crypto: &Provider,
        construction: &[u8],
        identifier: &[u8],
        responder: &[u8; 32],
    ) -> Self {
        let chaining_key = crypto.hash.hash(&[construction]);
        let hash = crypto.hash.hash(&[&chaining_key, identifier]);
        let hash = crypto.hash.hash(&[&hash, responder]);
        Self {
            chaining_key: Secret::new(chaining_key),
            hash,
        }
    }

    /// Returns the hash of all fields so far.
    pub(crate) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    pub(crate) fn mix_hash(&mut self, crypto: &Provider, data: &[u8]) {
        self.hash = crypto.hash.hash(&[&self.hash, data]);
    }

    /// Mixes an ephemeral public key. With a preshared key in the pattern, Noise mixes ephemeral
    /// keys into the chaining key as well as into the hash (Noise revision 34 §9.2).
    pub(crate) fn mix_ephemeral(&mut self, crypto: &Provider, public: &[u8; 32]) {
        let [chaining_key] = self.kdf(crypto, public);
        self.chaining_key = chaining_key;
        self.mix_hash(crypto, public);
    }

    pub(crate) fn mix_secret(&mut self, crypto: &Provider, shared: &SharedSecret) {
        let [chaining_key] = self.kdf(crypto, shared.expose());
        self.chaining_key = chaining_key;
    }

    pub(crate) fn mix_key(&mut self, crypto: &Provider, shared: &SharedSecret) -> Secret<32> {
        let [chaining_key, key] = self.kdf(crypto, shared.expose());
        self.chaining_key = chaining_key;
        key
    }

    pub(crate) fn mix_preshared_key(
        &mut self,
        crypto: &Provider,
        preshared: &PresharedKey,
    ) -> Secret<32> {
        let [chaining_key, tau, key] = self.kdf(crypto, preshared.expose());
        self.chaining_key = chaining_key;
        self.mix_hash(crypto, tau.expose());
        key
    }

    /// Like [`Self::mix_preshared_key`], with a second key: (C, τ, k, m) := KDF4(C, Q).
    pub(crate) fn mix_preshared_key_for_two(
        &mut self,
        crypto: &Provider,
        preshared: &PresharedKey,
    ) -> [Secret<32>; 2] {
        let [chaining_key, tau, key, another] = self.kdf(crypto, preshared.expose());
        self.chaining_key = chaining_key;
        self.mix_hash(crypto, tau.expose());
        [key, another]
    }

    /// Encrypts `data` in place. `data` ends with room for the tag.
    pub(crate) fn seal(&mut self, crypto: &Provider, key: &Secret<32>, data: &mut [u8]) {
        crypto.aead.seal_with(key, 0, &self.hash, data);
        self.mix_hash(crypto, data);
    }

    pub(crate) fn open(
        &mut self,
        crypto: &Provider,
        key: &Secret<32>,
        data: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let hash = crypto.hash.hash(&[&self.hash, data]);
        crypto.aead.open_with(key, 0, &self.hash, data)?;
        self.hash = hash;
        Ok(())
    }

    /// Derives a key from all values mixed so far: (C, k) := KDF2(C, ε).
    pub(crate) fn derive_key(&mut self, crypto: &Provider) -> Secret<32> {
        let [chaining_key, key] = self.kdf(crypto, &[]);
        self.chaining_key = chaining_key;
        key
    }

    /// Returns the initiator's sending key, then the responder's.
    fn split(&self, crypto: &Provider) -> (Secret<32>, Secret<32>) {
        self.split_with(crypto, &[])
    }

    /// Like [`Self::split`], with the transcript hash as input: KDF2(C, H).
    pub(crate) fn split_bound(&self, crypto: &Provider) -> (Secret<32>, Secret<32>) {
        self.split_with(crypto, &self.hash)
    }

    fn split_with(&self, crypto: &Provider, input: &[u8]) -> (Secret<32>, Secret<32>) {
        let [initiator, responder] = self.kdf(crypto, input);
        (initiator, responder)
    }

    /// KDFn: HMAC in the extract-and-expand form of HKDF (whitepaper §5.4).
    pub(crate) fn kdf<const N: usize>(&self, crypto: &Provider, input: &[u8]) -> [Secret<32>; N] {
        let mut outputs = [const { Secret::zeroed() }; N];
        let key = self.chaining_key.expose();
        crypto.hash.kdf(key, input, &mut outputs);
        outputs
    }
}

//! The key schedule of hybrid handshakes, as docs/post-quantum.md has it: without knowledge of
//! peers, or of the MACs of initiations. Its lines are quoted above those that do them.
//!
//! ```text
//! initiator                                      responder
//! Initiator::start ── A, B ────────────────────► Claim::open → Claim::verify → Opened
//!                                                Opened::take_b → Ready
//! Initiator::take_a → Halfway  ◄─────────── A, B ── Ready::respond → keys
//! Halfway::take_b → keys
//! ```
//!
//! A part that does not verify leaves no trace: states are only read.

use subtle::ConstantTimeEq;
use taupe_crypto::{
    DecapsulationKey, EncapsulationKey, InvalidKemInput, PreparedKey, Provider, Secret, TAG_LEN,
};
use zeroize::Zeroizing;

use crate::Random;
use crate::handshake::noise::{
    NoiseError, Precomputed, StaticKeys, Transcript, TransportKeys, agree,
};
use crate::hybrid::keys::Purpose;
use crate::hybrid::{LocalKeys, RemoteKeys};
use crate::key::PresharedKey;
use crate::message::{
    Half, IDENTITY_LEN, MAC_LEN, MACS_LEN, Part, Reader, Side, TAG_B_LEN, Writer,
};
use crate::suite::Suite;
use crate::time::Tai64N;

const IDENTIFIER: &[u8] = b"Taupe v1";

impl From<InvalidKemInput> for NoiseError {
    fn from(_: InvalidKemInput) -> Self {
        Self::NotAuthentic
    }
}

/// Who this side is.
#[derive(Clone, Copy)]
pub struct Local<'a> {
    /// Its X25519 keys.
    pub keys: &'a StaticKeys,
    /// Its ML-KEM keys.
    pub hybrid: &'a LocalKeys,
}

/// An initiator that waits for the first part of the response.
pub struct Initiator {
    suite: Suite,
    transcript: Transcript,
    mac_key: Secret<32>,
    ephemeral: Secret<32>,
    kem: Box<dyn DecapsulationKey>,
}

/// The parts of a message: those of an initiation with room for their MACs, those of a response
/// with them.
pub type Parts = Vec<Vec<u8>>;

impl Initiator {
    /// Makes an initiation to `remote`. `precomputed` is of the X25519
    /// keys of both; `sender` is this side's index.
    ///
    /// Of `random` it takes 32 bytes each for the ephemeral X25519 key, d and z of the
    /// ephemeral ML-KEM key, and the coins of the ciphertext, if there is one.
    ///
    /// # Errors
    /// [`NoiseError::LowOrder`]; [`NoiseError::NotAuthentic`] when a key of `remote` is none.
    #[allow(
        clippy::too_many_arguments,
        reason = "each is a value of the key schedule"
    )]
    pub fn start(
        crypto: &Provider,
        local: Local<'_>,
        remote: &RemoteKeys,
        preshared_key: &PresharedKey,
        precomputed: &Precomputed,
        random: &mut dyn Random,
        timestamp: Tai64N,
        sender: u32,
    ) -> Result<(Self, Parts), NoiseError> {
        // Only the other side would notice.
        debug_assert_eq!(remote.public_key.0, *precomputed.remote.as_bytes());
        let suite = remote.suite;
        let identity = local
            .hybrid
            .identity(suite)
            .ok_or(NoiseError::NotAuthentic)?;
        let part = |half| Part {
            suite,
            side: Side::Initiation,
            half,
        };
        let mut a = Writer::new(part(Half::A), &[sender]);
        // H := HASH(HASH(C ‖ IDENTIFIER) ‖ Id_r); H := HASH(H ‖ header)
        let mut transcript = begin(crypto, suite, &remote.identity.0);
        transcript.mix_hash(crypto, a.written());

        let hedge = &local.hybrid.hedge;
        let context = hedge.context(crypto, transcript.hash(), preshared_key, timestamp);
        let mut draw = |purpose| hedge.draw(crypto, random, purpose, &context);
        let ephemeral = draw(Purpose::Ephemeral);
        let mut seed = Secret::<64>::zeroed();
        seed.expose_mut()[..32].copy_from_slice(draw(Purpose::SeedD).expose());
        seed.expose_mut()[32..].copy_from_slice(draw(Purpose::SeedZ).expose());
        let kem = crypto.kem.decapsulation_key(suite.parameters(), &seed);
        let encapsulation_key = kem.encapsulation_key();

        // C := KDF1(C, E_i^pub); H := HASH(H ‖ E_i^pub); C := KDF1(C, DH(E_i^priv, S_r^pub))
        let public = crypto.dh.public(ephemeral.expose());
        transcript.mix_ephemeral(crypto, &public);
        a.put(&public);
        let shared = agree(crypto, ephemeral.expose(), &precomputed.remote)?;
        transcript.mix_secret(crypto, &shared);

        let key = match &remote.pq_public_key {
            // (K1, ct1) := ENCAPS(EK_r); H := HASH(H ‖ ct1); (C, k) := KDF2(C, K1)
            Some(key) => {
                let key = crypto
                    .kem
                    .encapsulation_key(suite.parameters(), key.as_bytes())?;
                let (ciphertext, shared) = key.encapsulate(&draw(Purpose::Coins1));
                transcript.mix_hash(crypto, &ciphertext);
                a.put(&ciphertext);
                transcript.mix_key(crypto, &shared)
            }
            // hybrid-light: H := HASH(H ‖ EK_e); (C, k) := KDF2(C, ε)
            None => {
                transcript.mix_hash(crypto, &encapsulation_key);
                a.put(&encapsulation_key);
                transcript.derive_key(crypto)
            }
        };
        // identity := AEAD(k, 0, the first 28 bytes of Id_i, H); H := HASH(H ‖ Id_i)
        let mut sealed = [0; IDENTITY_LEN + TAG_LEN];
        sealed[..IDENTITY_LEN].copy_from_slice(&identity.sent());
        transcript.seal(crypto, &key, &mut sealed);
        a.put(&sealed);
        transcript.mix_hash(crypto, &identity.0);

        // C := KDF1(C, DH(S_i^priv, S_r^pub)); (C, t, k, m) := KDF4(C, Q); H := HASH(H ‖ t)
        transcript.mix_secret(crypto, &precomputed.static_static);
        let [key, mac_key] = transcript.mix_preshared_key_for_two(crypto, preshared_key);
        // timestamp := AEAD(k, 0, TAI64N(), H)
        let mut sealed = [0; 12 + TAG_LEN];
        sealed[..12].copy_from_slice(&timestamp.0);
        transcript.seal(crypto, &key, &mut sealed);
        a.put(&sealed);
        let mut parts = vec![a.finish()];

        if suite.has_static_keys() {
            let mut b = Writer::new(part(Half::B), &[sender]);
            let tag = mix_b(crypto, &mut transcript, b.written(), &encapsulation_key);
            b.put(&encapsulation_key);
            b.put(&tag);
            parts.push(b.finish());
        }
        let state = Self {
            suite,
            transcript,
            mac_key,
            ephemeral,
            kem,
        };
        Ok((state, parts))
    }

    /// Whether the MACs at the end of a part of a response are right: it was made by who can
    /// open this initiation. Costs one MAC.
    #[must_use]
    pub fn is_answer(&self, crypto: &Provider, part: &[u8]) -> bool {
        let split = part.split_last_chunk::<MACS_LEN>();
        split.is_some_and(|(body, macs)| self.macs(crypto, body).ct_eq(macs).into())
    }

    /// Gives a part of a response the MACs that are right.
    pub(crate) fn stamp_response(&self, crypto: &Provider, part: &mut [u8]) {
        if let Some((body, macs)) = part.split_last_chunk_mut::<MACS_LEN>() {
            *macs = self.macs(crypto, body);
        }
    }

    /// mac1 := MAC(m, all before it); mac2 := 0
    fn macs(&self, crypto: &Provider, body: &[u8]) -> [u8; MACS_LEN] {
        let mut macs = [0; MACS_LEN];
        macs[..MAC_LEN].copy_from_slice(&crypto.hash.mac(self.mac_key.expose(), &[body]));
        macs
    }

    /// Takes the first part of a response. It verifies only if it was made by who has all
    /// static keys of the responder.
    ///
    /// # Errors
    /// [`NoiseError`]; the state is as it was.
    pub fn take_a(
        &self,
        crypto: &Provider,
        local: Local<'_>,
        preshared_key: &PresharedKey,
        part: &[u8],
    ) -> Result<AfterA, NoiseError> {
        let suite = self.suite;
        let (prefix, mut fields) = read(
            Part {
                suite,
                side: Side::Response,
                half: Half::A,
            },
            part,
        )?;
        let public: [u8; 32] = fields.take().ok_or(NoiseError::NotAuthentic)?;
        let ciphertext = fields.slice(suite.parameters().ciphertext_len());
        let ciphertext = ciphertext.ok_or(NoiseError::NotAuthentic)?;
        let mut empty: [u8; TAG_LEN] = fields.take().ok_or(NoiseError::NotAuthentic)?;

        let mut transcript = self.transcript.clone();
        transcript.mix_hash(crypto, prefix);
        transcript.mix_ephemeral(crypto, &public);
        // C := KDF1(C, DH(E_i, E_r)); C := KDF1(C, DH(S_i, E_r))
        let theirs = crypto.dh.prepare(&public);
        for own in [self.ephemeral.expose(), local.keys.private.expose()] {
            let shared = agree(crypto, own, &theirs)?;
            transcript.mix_secret(crypto, &shared);
        }
        // K2 := DECAPS(dk_e, ct2); H := HASH(H ‖ ct2)
        let shared = self.kem.decapsulate(ciphertext)?;
        transcript.mix_hash(crypto, ciphertext);
        if suite.has_static_keys() {
            // (C, k) := KDF2(C, K2); empty := AEAD(k, 0, ε, H)
            let key = transcript.mix_key(crypto, &shared);
            transcript.open(crypto, &key, &mut empty)?;
            return Ok(AfterA::Halfway(Halfway { suite, transcript }));
        }
        transcript.mix_secret(crypto, &shared);
        let key = transcript.mix_preshared_key(crypto, preshared_key);
        transcript.open(crypto, &key, &mut empty)?;
        let (send, receive) = transcript.split_bound(crypto);
        Ok(AfterA::Done(TransportKeys { send, receive }))
    }
}

/// What the first part of a response leads to.
pub enum AfterA {
    /// The second part is to come.
    Halfway(Halfway),
    /// There is none: these are the session's keys.
    Done(TransportKeys),
}

/// An initiator that waits for the second part of the response.
pub struct Halfway {
    suite: Suite,
    transcript: Transcript,
}

impl Halfway {
    /// Takes the second part and derives the session's keys.
    ///
    /// # Errors
    /// [`NoiseError`]; the state is as it was.
    pub fn take_b(
        &self,
        crypto: &Provider,
        local: Local<'_>,
        preshared_key: &PresharedKey,
        part: &[u8],
    ) -> Result<TransportKeys, NoiseError> {
        let suite = self.suite;
        let (prefix, mut fields) = read(
            Part {
                suite,
                side: Side::Response,
                half: Half::B,
            },
            part,
        )?;
        let ciphertext_len = suite.parameters().ciphertext_len();
        let sealed = fields.slice(ciphertext_len + TAG_LEN);
        // For whom it was made is told by it: it is not left behind.
        let mut sealed = Zeroizing::new(sealed.ok_or(NoiseError::NotAuthentic)?.to_vec());
        let mut empty: [u8; TAG_LEN] = fields.take().ok_or(NoiseError::NotAuthentic)?;

        let mut transcript = self.transcript.clone();
        transcript.mix_hash(crypto, prefix);
        // (C, k) := KDF2(C, ε); sealed = AEAD(k, 0, ct3, H); H := HASH(H ‖ sealed)
        let key = transcript.derive_key(crypto);
        transcript.open(crypto, &key, &mut sealed)?;
        // K3 := DECAPS(dk_i, ct3); C := KDF1(C, K3)
        let key = local.hybrid.key(suite).ok_or(NoiseError::NotAuthentic)?;
        let shared = key.decapsulate(&sealed[..ciphertext_len])?;
        transcript.mix_secret(crypto, &shared);
        // (C, t, k) := KDF3(C, Q); H := HASH(H ‖ t); empty := AEAD(k, 0, ε, H)
        let key = transcript.mix_preshared_key(crypto, preshared_key);
        transcript.open(crypto, &key, &mut empty)?;
        // (T_i^send = T_r^recv, T_i^recv = T_r^send) := KDF2(C, H)
        let (send, receive) = transcript.split_bound(crypto);
        Ok(TransportKeys { send, receive })
    }
}

/// An initiation whose sender has told who it is, but has not proven it yet.
pub struct Claim {
    suite: Suite,
    transcript: Transcript,
    sender: u32,
    ephemeral: PreparedKey,
    /// hybrid-light: the initiator's ephemeral key is in this part.
    encapsulation_key: Option<Box<dyn EncapsulationKey>>,
    identity: [u8; IDENTITY_LEN],
    timestamp: [u8; 12 + TAG_LEN],
}

impl Claim {
    /// Opens the identity in the first part of an initiation.
    ///
    /// # Errors
    /// [`NoiseError`], also when this side has no keys for the suite.
    pub fn open(
        crypto: &Provider,
        local: Local<'_>,
        suite: Suite,
        part: &[u8],
    ) -> Result<Self, NoiseError> {
        let own = local
            .hybrid
            .identity(suite)
            .ok_or(NoiseError::NotAuthentic)?;
        let (prefix, mut fields) = read(
            Part {
                suite,
                side: Side::Initiation,
                half: Half::A,
            },
            part,
        )?;
        let [sender, _] = crate::message::indices(part).ok_or(NoiseError::NotAuthentic)?;
        let ephemeral: [u8; 32] = fields.take().ok_or(NoiseError::NotAuthentic)?;
        let parameters = suite.parameters();
        let static_key = local.hybrid.key(suite);
        let kem = fields.slice(match static_key {
            Some(_) => parameters.ciphertext_len(),
            None => parameters.encapsulation_key_len(),
        });
        let kem = kem.ok_or(NoiseError::NotAuthentic)?;
        let mut sealed: [u8; IDENTITY_LEN + TAG_LEN] =
            fields.take().ok_or(NoiseError::NotAuthentic)?;
        let timestamp = fields.take().ok_or(NoiseError::NotAuthentic)?;

        let mut transcript = begin(crypto, suite, &own.0);
        transcript.mix_hash(crypto, prefix);
        transcript.mix_ephemeral(crypto, &ephemeral);
        let ephemeral = crypto.dh.prepare(&ephemeral);
        let shared = agree(crypto, local.keys.private.expose(), &ephemeral)?;
        transcript.mix_secret(crypto, &shared);
        transcript.mix_hash(crypto, kem);
        let mut encapsulation_key = None;
        let key = match static_key {
            Some(static_key) => transcript.mix_key(crypto, &static_key.decapsulate(kem)?),
            None => transcript.derive_key(crypto),
        };
        transcript.open(crypto, &key, &mut sealed)?;
        if static_key.is_none() {
            encapsulation_key = Some(crypto.kem.encapsulation_key(parameters, kem)?);
        }
        let mut identity = [0; IDENTITY_LEN];
        identity.copy_from_slice(&sealed[..IDENTITY_LEN]);
        Ok(Self {
            suite,
            transcript,
            sender,
            ephemeral,
            encapsulation_key,
            identity,
            timestamp,
        })
    }

    /// Who the sender says it is.
    #[must_use]
    pub fn identity(&self) -> &[u8; IDENTITY_LEN] {
        &self.identity
    }

    /// Verifies that the sender has the X25519 key it claims, and the preshared key. `remote`
    /// is whose identity this is, `precomputed` of the X25519 keys of both. It does not prove that the sender has the ML-KEM key.
    ///
    /// # Errors
    /// [`NoiseError::NotAuthentic`].
    pub fn verify(
        mut self,
        crypto: &Provider,
        remote: &RemoteKeys,
        preshared_key: &PresharedKey,
        precomputed: &Precomputed,
    ) -> Result<Opened, NoiseError> {
        let transcript = &mut self.transcript;
        transcript.mix_hash(crypto, &remote.identity.0);
        transcript.mix_secret(crypto, &precomputed.static_static);
        let [key, mac_key] = transcript.mix_preshared_key_for_two(crypto, preshared_key);
        let mut sealed_timestamp = self.timestamp;
        transcript.open(crypto, &key, &mut sealed_timestamp)?;
        let mut timestamp = [0; 12];
        timestamp.copy_from_slice(&sealed_timestamp[..12]);
        Ok(Opened {
            suite: self.suite,
            transcript: self.transcript,
            mac_key,
            sender: self.sender,
            ephemeral: self.ephemeral,
            initiator: precomputed.remote.clone(),
            encapsulation_key: self.encapsulation_key,
            timestamp: Tai64N(timestamp),
        })
    }
}

/// The first part of an initiation, verified as far as X25519 and the preshared key go.
pub struct Opened {
    suite: Suite,
    transcript: Transcript,
    mac_key: Secret<32>,
    sender: u32,
    ephemeral: PreparedKey,
    initiator: PreparedKey,
    encapsulation_key: Option<Box<dyn EncapsulationKey>>,
    timestamp: Tai64N,
}

impl Opened {
    /// Which handshake it is.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The initiation's timestamp. Nobody may rely on it before the session is confirmed.
    #[must_use]
    pub fn timestamp(&self) -> Tai64N {
        self.timestamp
    }

    /// hybrid-light: there is no second part. `None` in the other suites.
    #[must_use]
    pub fn without_b(&mut self) -> Option<Ready> {
        let encapsulation_key = self.encapsulation_key.take()?;
        Some(self.ready(self.transcript.clone(), encapsulation_key))
    }

    /// Takes the second part of the initiation.
    ///
    /// # Errors
    /// [`NoiseError::NotAuthentic`]; the state is as it was.
    pub fn take_b(&self, crypto: &Provider, part: &[u8]) -> Result<Ready, NoiseError> {
        let suite = self.suite;
        let (prefix, mut fields) = read(
            Part {
                suite,
                side: Side::Initiation,
                half: Half::B,
            },
            part,
        )?;
        let key = fields.slice(suite.parameters().encapsulation_key_len());
        let key = key.ok_or(NoiseError::NotAuthentic)?;
        let tag: [u8; TAG_B_LEN] = fields.take().ok_or(NoiseError::NotAuthentic)?;
        let mut transcript = self.transcript.clone();
        let expected = mix_b(crypto, &mut transcript, prefix, key);
        if !bool::from(expected.ct_eq(&tag)) {
            return Err(NoiseError::NotAuthentic);
        }
        let key = crypto.kem.encapsulation_key(suite.parameters(), key)?;
        Ok(self.ready(transcript, key))
    }

    fn ready(&self, transcript: Transcript, key: Box<dyn EncapsulationKey>) -> Ready {
        Ready {
            suite: self.suite,
            transcript,
            mac_key: self.mac_key.clone(),
            sender: self.sender,
            ephemeral: self.ephemeral.clone(),
            initiator: self.initiator.clone(),
            encapsulation_key: key,
        }
    }
}

/// A whole initiation.
pub struct Ready {
    suite: Suite,
    transcript: Transcript,
    mac_key: Secret<32>,
    sender: u32,
    ephemeral: PreparedKey,
    initiator: PreparedKey,
    encapsulation_key: Box<dyn EncapsulationKey>,
}

impl Ready {
    /// Makes the response and derives the session's keys. `sender` is this side's index,
    /// `now` the time, which only hedges `random`.
    ///
    /// Of `random` it takes 32 bytes each for the ephemeral X25519 key and the coins of each
    /// ciphertext.
    ///
    /// # Errors
    /// [`NoiseError::LowOrder`]; [`NoiseError::NotAuthentic`] when a key of `remote` is none.
    #[allow(
        clippy::too_many_arguments,
        reason = "each is a value of the key schedule"
    )]
    pub fn respond(
        self,
        crypto: &Provider,
        local: Local<'_>,
        remote: &RemoteKeys,
        preshared_key: &PresharedKey,
        random: &mut dyn Random,
        now: Tai64N,
        sender: u32,
    ) -> Result<(Parts, TransportKeys), NoiseError> {
        let suite = self.suite;
        let hedge = &local.hybrid.hedge;
        let mut transcript = self.transcript;
        let context = hedge.context(crypto, transcript.hash(), preshared_key, now);
        let mut draw = |purpose| hedge.draw(crypto, random, purpose, &context);
        let ephemeral = draw(Purpose::Ephemeral);
        let indices = [sender, self.sender];
        let part = |half| Part {
            suite,
            side: Side::Response,
            half,
        };

        // mac1 := MAC(m, all before it); mac2 := 0
        let mac1 = |part: &[u8]| crypto.hash.mac(self.mac_key.expose(), &[part]);

        // H := HASH(H ‖ header); C := KDF1(C, E_r^pub); H := HASH(H ‖ E_r^pub)
        let mut a = Writer::new(part(Half::A), &indices);
        transcript.mix_hash(crypto, a.written());
        let public = crypto.dh.public(ephemeral.expose());
        transcript.mix_ephemeral(crypto, &public);
        a.put(&public);
        // C := KDF1(C, DH(E_r, E_i)); C := KDF1(C, DH(E_r, S_i))
        for theirs in [&self.ephemeral, &self.initiator] {
            let shared = agree(crypto, ephemeral.expose(), theirs)?;
            transcript.mix_secret(crypto, &shared);
        }
        // (K2, ct2) := ENCAPS(EK_e); H := HASH(H ‖ ct2)
        let (ciphertext, shared) = self.encapsulation_key.encapsulate(&draw(Purpose::Coins2));
        transcript.mix_hash(crypto, &ciphertext);
        a.put(&ciphertext);
        let mut parts = Vec::with_capacity(2);
        let mut last = a;
        if let Some(key) = &remote.pq_public_key {
            // (C, k) := KDF2(C, K2); empty := AEAD(k, 0, ε, H)
            let k = transcript.mix_key(crypto, &shared);
            let mut empty = [0; TAG_LEN];
            transcript.seal(crypto, &k, &mut empty);
            last.put(&empty);
            parts.push(last.finish_with(mac1));

            // H := HASH(H ‖ header)
            last = Writer::new(part(Half::B), &indices);
            transcript.mix_hash(crypto, last.written());
            // (C, k) := KDF2(C, ε); (K3, ct3) := ENCAPS(EK_i)
            let k = transcript.derive_key(crypto);
            let key = crypto
                .kem
                .encapsulation_key(suite.parameters(), key.as_bytes())?;
            let (mut sealed, shared) = key.encapsulate(&draw(Purpose::Coins3));
            // sealed := AEAD(k, 0, ct3, H); H := HASH(H ‖ sealed); C := KDF1(C, K3)
            sealed.extend([0; TAG_LEN]);
            transcript.seal(crypto, &k, &mut sealed);
            last.put(&sealed);
            transcript.mix_secret(crypto, &shared);
        } else {
            transcript.mix_secret(crypto, &shared);
        }
        // (C, t, k) := KDF3(C, Q); H := HASH(H ‖ t); empty := AEAD(k, 0, ε, H)
        let key = transcript.mix_preshared_key(crypto, preshared_key);
        let mut empty = [0; TAG_LEN];
        transcript.seal(crypto, &key, &mut empty);
        last.put(&empty);
        parts.push(last.finish_with(mac1));
        // (T_i^send = T_r^recv, T_i^recv = T_r^send) := KDF2(C, H)
        let (receive, send) = transcript.split_bound(crypto);
        Ok((parts, TransportKeys { send, receive }))
    }
}

/// C := HASH(CONSTRUCTION); H := HASH(HASH(C ‖ IDENTIFIER) ‖ Id_r)
fn begin(crypto: &Provider, suite: Suite, responder: &[u8; 32]) -> Transcript {
    Transcript::new(crypto, suite.construction(), IDENTIFIER, responder)
}

/// Mixes the second part of an initiation and returns its tag.
fn mix_b(
    crypto: &Provider,
    transcript: &mut Transcript,
    prefix: &[u8],
    encapsulation_key: &[u8],
) -> [u8; TAG_B_LEN] {
    // H := HASH(H ‖ header); H := HASH(H ‖ EK_e); (C, k) := KDF2(C, ε)
    transcript.mix_hash(crypto, prefix);
    transcript.mix_hash(crypto, encapsulation_key);
    let key = transcript.derive_key(crypto);
    // tag := the first 8 bytes of MAC(k, H); H := HASH(H ‖ tag)
    let mac = crypto.hash.mac(key.expose(), &[transcript.hash()]);
    let mut tag = [0; TAG_B_LEN];
    tag.copy_from_slice(&mac[..TAG_B_LEN]);
    transcript.mix_hash(crypto, &tag);
    tag
}

fn read<'a>(part: Part, bytes: &'a [u8]) -> Result<(&'a [u8], Reader<'a>), NoiseError> {
    Reader::new(part, bytes).ok_or(NoiseError::NotAuthentic)
}

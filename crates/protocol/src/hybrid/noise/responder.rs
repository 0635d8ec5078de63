//! Responder of a hybrid handshake.

use subtle::ConstantTimeEq;
use taupe_crypto::{Agreement, EncapsulationKey, Provider, Secret, TAG_LEN};

use super::{Local, Parts, begin, mix_part_b, read};
use crate::Random;
use crate::handshake::noise::{NoiseError, Precomputed, Transcript, TransportKeys, agree};
use crate::hybrid::RemoteKeys;
use crate::hybrid::keys::Purpose;
use crate::key::PresharedKey;
use crate::message::{Half, IDENTITY_LEN, Part, Side, TAG_B_LEN, Writer};
use crate::suite::Suite;
use crate::time::Tai64N;

/// An initiation whose identity has been decrypted, before any proof that the sender has its
/// private keys.
pub struct HybridClaim {
    suite: Suite,
    transcript: Transcript,
    sender: u32,
    ephemeral: [u8; 32],
    /// hybrid-light: the initiator's ephemeral ML-KEM key, which the first part contains.
    encapsulation_key: Option<Box<dyn EncapsulationKey>>,
    identity: [u8; IDENTITY_LEN],
    timestamp: [u8; 12 + TAG_LEN],
}

impl HybridClaim {
    /// Decrypts the identity in the first part of an initiation.
    ///
    /// # Errors
    /// [`NoiseError`], also if this side has no keys for the suite.
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

        // H := HASH(HASH(C ‖ IDENTIFIER) ‖ Id_r); H := HASH(H ‖ header)
        let mut transcript = begin(crypto, suite, &own.0);
        transcript.mix_hash(crypto, prefix);
        // C := KDF1(C, E_i^pub); H := HASH(H ‖ E_i^pub); C := KDF1(C, DH(S_r^priv, E_i^pub))
        transcript.mix_ephemeral(crypto, &ephemeral);
        let agreement = Agreement {
            private: local.keys.private.expose(),
            public: &ephemeral,
        };
        let [shared] = agree(crypto, [agreement])?;
        transcript.mix_secret(crypto, &shared);
        // K1 := DECAPS(dk_r, ct1); H := HASH(H ‖ ct1); (C, k) := KDF2(C, K1)
        // hybrid-light: H := HASH(H ‖ EK_e); (C, k) := KDF2(C, ε)
        transcript.mix_hash(crypto, kem);
        let mut encapsulation_key = None;
        let key = match static_key {
            Some(static_key) => transcript.mix_key(crypto, &static_key.decapsulate(kem)?),
            None => transcript.derive_key(crypto),
        };
        // identity = AEAD(k, 0, the first 28 bytes of Id_i, H); H := HASH(H ‖ identity)
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

    /// Returns the identity that the sender claims.
    #[must_use]
    pub fn identity(&self) -> &[u8; IDENTITY_LEN] {
        &self.identity
    }

    /// Verifies that the sender has the preshared key and the X25519 private key of its identity.
    /// It does not prove that the sender has the ML-KEM private key. `remote` must be the peer of
    /// [`Self::identity`]; `precomputed` must be made from the X25519 keys of both sides.
    ///
    /// # Errors
    /// [`NoiseError::NotAuthentic`].
    pub fn verify(
        mut self,
        crypto: &Provider,
        remote: &RemoteKeys,
        preshared_key: &PresharedKey,
        precomputed: &Precomputed,
    ) -> Result<VerifiedPartA, NoiseError> {
        let transcript = &mut self.transcript;
        // H := HASH(H ‖ Id_i); C := KDF1(C, DH(S_r^priv, S_i^pub))
        transcript.mix_hash(crypto, &remote.identity.0);
        transcript.mix_secret(crypto, &precomputed.static_static);
        // (C, t, k, m) := KDF4(C, Q); H := HASH(H ‖ t); timestamp = AEAD(k, 0, TAI64N(), H)
        let [key, mac_key] = transcript.mix_preshared_key_for_two(crypto, preshared_key);
        let mut sealed_timestamp = self.timestamp;
        transcript.open(crypto, &key, &mut sealed_timestamp)?;
        let mut timestamp = [0; 12];
        timestamp.copy_from_slice(&sealed_timestamp[..12]);
        Ok(VerifiedPartA {
            suite: self.suite,
            transcript: self.transcript,
            mac_key,
            sender: self.sender,
            ephemeral: self.ephemeral,
            initiator: precomputed.remote,
            encapsulation_key: self.encapsulation_key,
            timestamp: Tai64N(timestamp),
        })
    }
}

/// The first part of an initiation, authenticated by X25519 and the preshared key.
pub struct VerifiedPartA {
    suite: Suite,
    transcript: Transcript,
    mac_key: Secret<32>,
    sender: u32,
    ephemeral: [u8; 32],
    initiator: [u8; 32],
    encapsulation_key: Option<Box<dyn EncapsulationKey>>,
    timestamp: Tai64N,
}

impl VerifiedPartA {
    /// Returns the suite.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Returns the initiation's timestamp. It must not be stored before the session is confirmed.
    #[must_use]
    pub fn timestamp(&self) -> Tai64N {
        self.timestamp
    }

    /// Returns the complete initiation if the suite, hybrid-light, has no second part. `None` in
    /// the other suites.
    #[must_use]
    pub fn without_part_b(&mut self) -> Option<HybridResponder> {
        let encapsulation_key = self.encapsulation_key.take()?;
        Some(self.ready(self.transcript.clone(), encapsulation_key))
    }

    /// Verifies the second part of the initiation.
    ///
    /// # Errors
    /// [`NoiseError::NotAuthentic`]; the state does not change.
    pub fn read_part_b(
        &self,
        crypto: &Provider,
        part: &[u8],
    ) -> Result<HybridResponder, NoiseError> {
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
        let expected = mix_part_b(crypto, &mut transcript, prefix, key);
        if !bool::from(expected.ct_eq(&tag)) {
            return Err(NoiseError::NotAuthentic);
        }
        let key = crypto.kem.encapsulation_key(suite.parameters(), key)?;
        Ok(self.ready(transcript, key))
    }

    fn ready(&self, transcript: Transcript, key: Box<dyn EncapsulationKey>) -> HybridResponder {
        HybridResponder {
            suite: self.suite,
            transcript,
            mac_key: self.mac_key.clone(),
            sender: self.sender,
            ephemeral: self.ephemeral,
            initiator: self.initiator,
            encapsulation_key: key,
        }
    }
}

/// A complete initiation.
pub struct HybridResponder {
    suite: Suite,
    transcript: Transcript,
    mac_key: Secret<32>,
    sender: u32,
    ephemeral: [u8; 32],
    initiator: [u8; 32],
    encapsulation_key: Box<dyn EncapsulationKey>,
}

impl HybridResponder {
    /// Makes the response and derives the session's keys. `sender` is this side's index. `now`
    /// serves only to hedge `random`.
    ///
    /// Draws 32 bytes from `random` for each of: the ephemeral X25519 key, and the coins of each
    /// ciphertext.
    ///
    /// # Errors
    /// [`NoiseError::LowOrder`] if a key of the initiator is of low order.
    /// [`NoiseError::NotAuthentic`] if the ML-KEM key of `remote` is invalid.
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
        let private = ephemeral.expose();
        let theirs = [&self.ephemeral, &self.initiator];
        let agreements = theirs.map(|public| Agreement { private, public });
        for shared in agree(crypto, agreements)? {
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
            // hybrid-light: C := KDF1(C, K2)
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

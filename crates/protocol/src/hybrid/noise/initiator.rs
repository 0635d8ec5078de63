//! Initiator of a hybrid handshake.

use subtle::ConstantTimeEq;
use taupe_crypto::{Agreement, DecapsulationKey, Provider, Secret, TAG_LEN};
use zeroize::Zeroizing;

use super::{Local, Parts, begin, mix_part_b, read};
use crate::Random;
use crate::handshake::noise::{
    NoiseError, Precomputed, Transcript, TransportKeys, agree, agree_beside_public,
};
use crate::hybrid::RemoteKeys;
use crate::hybrid::keys::Purpose;
use crate::key::PresharedKey;
use crate::message::{Half, IDENTITY_LEN, MAC_LEN, MACS_LEN, Part, Side, Writer};
use crate::suite::Suite;
use crate::time::Tai64N;

/// Initiator state until the first part of the response arrives.
pub struct HybridInitiator {
    suite: Suite,
    transcript: Transcript,
    mac_key: Secret<32>,
    ephemeral: Secret<32>,
    kem: Box<dyn DecapsulationKey>,
}

impl HybridInitiator {
    /// Makes an initiation to `remote`. `precomputed` must be made from the X25519 keys of both
    /// sides; `sender` is this side's index.
    ///
    /// Draws 32 bytes from `random` for each of: the ephemeral X25519 key, d and z of the
    /// ephemeral ML-KEM key, and the coins of the ciphertext if there is one.
    ///
    /// # Errors
    /// [`NoiseError::LowOrder`] if a key of `remote` is of low order.
    /// [`NoiseError::NotAuthentic`] if its ML-KEM key is invalid, or if this side has no keys for
    /// the suite.
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
        // If the keys differed, only the other side would notice: it would refuse the message.
        debug_assert_eq!(remote.public_key.0, precomputed.remote);
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
        let agreement = Agreement {
            private: ephemeral.expose(),
            public: &precomputed.remote,
        };
        let (shared, public) = agree_beside_public(crypto, &ephemeral, agreement)?;
        let public = public.unwrap_or_else(|| crypto.dh.public(ephemeral.expose()));
        transcript.mix_ephemeral(crypto, &public);
        a.put(&public);
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
            let tag = mix_part_b(crypto, &mut transcript, b.written(), &encapsulation_key);
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

    /// Checks the MACs at the end of a part of a response: only a responder that can open this
    /// initiation can make them. Costs one MAC.
    #[must_use]
    pub fn verify_response_macs(&self, crypto: &Provider, part: &[u8]) -> bool {
        let split = part.split_last_chunk::<MACS_LEN>();
        split.is_some_and(|(body, macs)| self.macs(crypto, body).ct_eq(macs).into())
    }

    /// Writes valid MACs into a part of a response.
    #[cfg(feature = "testing")]
    pub(crate) fn write_response_macs(&self, crypto: &Provider, part: &mut [u8]) {
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

    /// Verifies the first part of a response. Only a responder that has all of its static private
    /// keys can make it.
    ///
    /// # Errors
    /// [`NoiseError`]; the state does not change.
    pub fn read_part_a(
        &self,
        crypto: &Provider,
        local: Local<'_>,
        preshared_key: &PresharedKey,
        part: &[u8],
    ) -> Result<PartAOutcome, NoiseError> {
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
        // H := HASH(H ‖ header); C := KDF1(C, E_r^pub); H := HASH(H ‖ E_r^pub)
        transcript.mix_hash(crypto, prefix);
        transcript.mix_ephemeral(crypto, &public);
        // C := KDF1(C, DH(E_i, E_r)); C := KDF1(C, DH(S_i, E_r))
        let owns = [self.ephemeral.expose(), local.keys.private.expose()];
        let public = &public;
        let agreements = owns.map(|private| Agreement { private, public });
        for shared in agree(crypto, agreements)? {
            transcript.mix_secret(crypto, &shared);
        }
        // K2 := DECAPS(dk_e, ct2); H := HASH(H ‖ ct2)
        let shared = self.kem.decapsulate(ciphertext)?;
        transcript.mix_hash(crypto, ciphertext);
        if suite.has_static_keys() {
            // (C, k) := KDF2(C, K2); empty := AEAD(k, 0, ε, H)
            let key = transcript.mix_key(crypto, &shared);
            transcript.open(crypto, &key, &mut empty)?;
            return Ok(PartAOutcome::NeedsPartB(AwaitingPartB {
                suite,
                transcript,
            }));
        }
        // hybrid-light: C := KDF1(C, K2)
        transcript.mix_secret(crypto, &shared);
        // (C, t, k) := KDF3(C, Q); H := HASH(H ‖ t); empty = AEAD(k, 0, ε, H)
        let key = transcript.mix_preshared_key(crypto, preshared_key);
        transcript.open(crypto, &key, &mut empty)?;
        // (T_i^send = T_r^recv, T_i^recv = T_r^send) := KDF2(C, H)
        let (send, receive) = transcript.split_bound(crypto);
        Ok(PartAOutcome::Complete(TransportKeys { send, receive }))
    }
}

/// Result of the first part of a response.
pub enum PartAOutcome {
    /// The suite has a second part.
    NeedsPartB(AwaitingPartB),
    /// The suite has no second part: the session's keys.
    Complete(TransportKeys),
}

/// Initiator state until the second part of the response arrives.
pub struct AwaitingPartB {
    suite: Suite,
    transcript: Transcript,
}

impl AwaitingPartB {
    /// Verifies the second part and derives the session's keys.
    ///
    /// # Errors
    /// [`NoiseError`]; the state does not change.
    pub fn read_part_b(
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
        // The decrypted ct3 reveals whose key it was made for: it is zeroised.
        let mut sealed = Zeroizing::new(sealed.ok_or(NoiseError::NotAuthentic)?.to_vec());
        let mut empty: [u8; TAG_LEN] = fields.take().ok_or(NoiseError::NotAuthentic)?;

        let mut transcript = self.transcript.clone();
        // H := HASH(H ‖ header)
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

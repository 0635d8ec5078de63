//! Values derived from static keys: identities, expanded keys and hedged randomness.

use taupe_crypto::{DecapsulationKey, Provider, Secret};

use crate::Random;
use crate::handshake::noise::StaticKeys;
use crate::key::{PqPrivateKey, PqPublicKey, PresharedKey, PublicKey};
use crate::message::IDENTITY_LEN;
use crate::suite::Suite;
use crate::time::Tai64N;

/// HASH(CONSTRUCTION ‖ S^pub ‖ EK): a peer's two static public keys in one suite.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity(pub(crate) [u8; 32]);

impl Identity {
    fn new(crypto: &Provider, suite: Suite, public: &PublicKey, key: &[u8]) -> Self {
        let construction = suite.construction();
        Self(crypto.hash.hash(&[construction, &public.0, key]))
    }

    /// Returns the first 224 bits, which are sent. Collisions of two peers are infeasible to
    /// find.
    #[must_use]
    pub fn sent(&self) -> [u8; IDENTITY_LEN] {
        let mut sent = [0; IDENTITY_LEN];
        sent.copy_from_slice(&self.0[..IDENTITY_LEN]);
        sent
    }
}

/// This side's keys in all suites.
pub struct LocalKeys {
    light: Identity,
    hybrid: Vec<(Suite, Identity, Box<dyn DecapsulationKey>)>,
    /// Hedges the randomness of this side's handshakes.
    pub hedge: Hedge,
}

impl LocalKeys {
    /// Returns keys that claim `identity` but have only the X25519 private key and `seed`: those
    /// of the attacker that hybrid handshakes defend against.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn pretending(
        crypto: &Provider,
        keys: &StaticKeys,
        seed: &PqPrivateKey,
        suite: Suite,
        identity: Identity,
    ) -> Self {
        let mut made = Self::new(crypto, keys, Some(seed));
        for (_, mine, _) in made.hybrid.iter_mut().filter(|(of, _, _)| *of == suite) {
            *mine = identity;
        }
        made
    }

    /// Derives the keys of all suites from `keys` and `seed`. Without a seed, only `hybrid-light`
    /// is available.
    #[must_use]
    pub fn new(crypto: &Provider, keys: &StaticKeys, seed: Option<&PqPrivateKey>) -> Self {
        let suites = seed.map(|_| [Suite::Hybrid512, Suite::Hybrid768]);
        let expand = |suite: Suite| {
            let key = crypto
                .kem
                .decapsulation_key(suite.parameters(), seed?.expose());
            let public = key.encapsulation_key();
            let identity = Identity::new(crypto, suite, &keys.public, &public);
            Some((suite, identity, key))
        };
        Self {
            light: Identity::new(crypto, Suite::Light, &keys.public, &[]),
            hybrid: suites.into_iter().flatten().filter_map(expand).collect(),
            hedge: Hedge::new(crypto, keys, seed),
        }
    }

    /// Returns this side's identity in `suite`. `None` if it lacks the key for it.
    #[must_use]
    pub fn identity(&self, suite: Suite) -> Option<&Identity> {
        if suite == Suite::Light {
            return Some(&self.light);
        }
        self.of(suite).map(|(_, identity, _)| identity)
    }

    /// Returns the static decapsulation key of `suite`, if the suite has one.
    pub(crate) fn key(&self, suite: Suite) -> Option<&dyn DecapsulationKey> {
        self.of(suite).map(|(_, _, key)| &**key)
    }

    fn of(&self, suite: Suite) -> Option<&(Suite, Identity, Box<dyn DecapsulationKey>)> {
        self.hybrid.iter().find(|(it, _, _)| *it == suite)
    }
}

/// The peer's public keys in the suite that both sides use.
#[derive(Clone)]
pub struct RemoteKeys {
    /// The suite.
    pub suite: Suite,
    /// The peer's X25519 key.
    pub public_key: PublicKey,
    /// The peer's ML-KEM key, if the suite has one.
    pub pq_public_key: Option<PqPublicKey>,
    /// The peer's identity in this suite.
    pub identity: Identity,
}

impl RemoteKeys {
    /// Returns the keys of a peer. Its ML-KEM key determines the suite.
    #[must_use]
    pub fn new(crypto: &Provider, public_key: PublicKey, key: Option<PqPublicKey>) -> Self {
        let suite = key.as_ref().map_or(Suite::Light, PqPublicKey::suite);
        let bytes = key.as_ref().map_or(&[][..], PqPublicKey::as_bytes);
        Self {
            suite,
            identity: Identity::new(crypto, suite, &public_key, bytes),
            public_key,
            pq_public_key: key,
        }
    }
}

/// Purpose of a random value: separates the values drawn for one message.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// An ephemeral X25519 key.
    Ephemeral = 1,
    /// d of an ephemeral ML-KEM key.
    SeedD,
    /// Its z.
    SeedZ,
    /// The coins of ct1.
    Coins1,
    /// The coins of ct2.
    Coins2,
    /// The coins of ct3.
    Coins3,
}

/// Hedges randomness: mixes the generator's output with this side's private keys, so that an
/// attacker who can predict the generator still cannot predict the result.
pub struct Hedge(Secret<32>);

impl Hedge {
    fn new(crypto: &Provider, keys: &StaticKeys, seed: Option<&PqPrivateKey>) -> Self {
        let seed = seed.map_or(&[][..], |seed| seed.expose().expose());
        let private = keys.private.expose();
        // σ := HMAC(S^priv, "Taupe v1 hedge" ‖ seed)
        Self(crypto.hash.hmac(private, &[b"Taupe v1 hedge", seed]))
    }

    /// Returns the context of one message's random values. It binds them to the transcript so
    /// far, the preshared key and the time, so that they differ even if the generator repeats its
    /// output.
    pub(crate) fn context(
        &self,
        crypto: &Provider,
        transcript: &[u8; 32],
        preshared_key: &PresharedKey,
        now: Tai64N,
    ) -> Secret<32> {
        // context := HMAC(σ, H ‖ Q ‖ timestamp)
        let parts: [&[u8]; 3] = [transcript, preshared_key.expose(), &now.0];
        crypto.hash.hmac(self.0.expose(), &parts)
    }

    /// Draws 32 bytes for `purpose`, from 32 fresh bytes of `random`.
    pub(crate) fn draw(
        &self,
        crypto: &Provider,
        random: &mut dyn Random,
        purpose: Purpose,
        context: &Secret<32>,
    ) -> Secret<32> {
        // drawn := HMAC(context, purpose ‖ 32 bytes of the generator)
        let fresh = random.secret();
        let parts: [&[u8]; 2] = [&[purpose as u8], fresh.expose()];
        crypto.hash.hmac(context.expose(), &parts)
    }
}

//! What follows from static keys: identities, expanded keys, and hedged randomness.

use taupe_crypto::{DecapsulationKey, Provider, Secret};

use crate::Random;
use crate::handshake::noise::StaticKeys;
use crate::key::{PqPrivateKey, PqPublicKey, PresharedKey, PublicKey};
use crate::message::IDENTITY_LEN;
use crate::suite::Suite;
use crate::time::Tai64N;

/// HASH(CONSTRUCTION ‖ S^pub ‖ EK): both static public keys of a peer, in one suite.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity(pub(crate) [u8; 32]);

impl Identity {
    fn new(crypto: &Provider, suite: Suite, public: &PublicKey, key: &[u8]) -> Self {
        let construction = suite.construction();
        Self(crypto.hash.hash(&[construction, &public.0, key]))
    }

    /// What of it is sent. 224 bits: nobody finds two peers with the same.
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
    /// Of the randomness that is drawn for it.
    pub hedge: Hedge,
}

impl LocalKeys {
    /// Keys of who says to be `identity` and has only X25519's private key and `seed`: the
    /// attacker that hybrid handshakes are made against.
    #[doc(hidden)]
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

    /// Expands `seed` beside `keys`; without one there is `hybrid-light` alone.
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

    /// Who this side is in `suite`. `None` if it lacks the key for it.
    #[must_use]
    pub fn identity(&self, suite: Suite) -> Option<&Identity> {
        if suite == Suite::Light {
            return Some(&self.light);
        }
        self.of(suite).map(|(_, identity, _)| identity)
    }

    /// The static decapsulation key of `suite`, if it has one.
    pub(crate) fn key(&self, suite: Suite) -> Option<&dyn DecapsulationKey> {
        self.of(suite).map(|(_, _, key)| &**key)
    }

    fn of(&self, suite: Suite) -> Option<&(Suite, Identity, Box<dyn DecapsulationKey>)> {
        self.hybrid.iter().find(|(it, _, _)| *it == suite)
    }
}

/// The other side's keys in the suite that both use.
#[derive(Clone)]
pub struct RemoteKeys {
    /// The suite.
    pub suite: Suite,
    /// Its X25519 key.
    pub public_key: PublicKey,
    /// Its ML-KEM key, where the suite has one.
    pub pq_public_key: Option<PqPublicKey>,
    /// Who it is.
    pub identity: Identity,
}

impl RemoteKeys {
    /// A peer with these public keys: its suite is that of its ML-KEM key.
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

/// What randomness is drawn for.
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

/// Turns what a generator gives into something that nobody without this side's private keys
/// can tell, even if they know what the generator gave.
pub struct Hedge(Secret<32>);

impl Hedge {
    fn new(crypto: &Provider, keys: &StaticKeys, seed: Option<&PqPrivateKey>) -> Self {
        let seed = seed.map_or(&[][..], |seed| seed.expose().expose());
        let private = keys.private.expose();
        Self(crypto.hash.hmac(private, &[b"Taupe v1 hedge", seed]))
    }

    /// What the draws of one message are bound to: the transcript so far, the preshared key
    /// and the time, so that a generator that repeats itself does not repeat them.
    pub(crate) fn context(
        &self,
        crypto: &Provider,
        transcript: &[u8; 32],
        preshared_key: &PresharedKey,
        now: Tai64N,
    ) -> Secret<32> {
        let parts: [&[u8]; 3] = [transcript, preshared_key.expose(), &now.0];
        crypto.hash.hmac(self.0.expose(), &parts)
    }

    /// 32 bytes for `purpose`, of 32 fresh ones.
    pub(crate) fn draw(
        &self,
        crypto: &Provider,
        random: &mut dyn Random,
        purpose: Purpose,
        context: &Secret<32>,
    ) -> Secret<32> {
        let fresh = random.secret();
        let parts: [&[u8]; 2] = [&[purpose as u8], fresh.expose()];
        crypto.hash.hmac(context.expose(), &parts)
    }
}

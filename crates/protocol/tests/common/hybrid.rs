//! Pairs with ML-KEM keys, and an attacker with all X25519 private keys.

use std::net::SocketAddr;

use taupe_protocol::crypto::{Provider, Secret};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PresharedKey};
use taupe_protocol::testing::hybrid_noise::{AwaitingPartB, HybridInitiator, Local, PartAOutcome};
use taupe_protocol::testing::noise::{Precomputed, StaticKeys, TransportKeys};
use taupe_protocol::testing::{Identity, LocalKeys, RemoteKeys};
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PostQuantum};

use super::Net;
use super::random::{SharedNumbers, TestRandom};
use super::raw::{RawSession, stamp_for, word};

/// Returns the seed of a node's ML-KEM keys.
pub fn seed(node: usize) -> PqPrivateKey {
    let mut bytes = Secret::zeroed();
    let mut random = TestRandom::new(0x9c + node as u64, SharedNumbers::default());
    taupe_protocol::Random::fill(&mut random, bytes.expose_mut());
    PqPrivateKey::new(bytes).expect("not zero")
}

/// Returns a node's static ML-KEM key, if the suite has static keys.
pub fn public(crypto: &Provider, node: usize, suite: Suite) -> Option<PqPublicKey> {
    suite
        .has_static_keys()
        .then(|| seed(node).public(crypto, suite))
}

impl Net {
    /// Sets a node's seed of ML-KEM keys.
    pub fn set_seed(&mut self, at: usize, seed: Option<PqPrivateKey>) {
        let pq_private_key = Some(seed);
        self.apply(
            at,
            DeviceUpdate {
                pq_private_key,
                ..DeviceUpdate::default()
            },
        );
    }

    /// Configures hybrid handshakes of node `at` with node `of`.
    pub fn set_hybrid(
        &mut self,
        at: usize,
        of: usize,
        key: Option<PqPublicKey>,
        post_quantum: Option<PostQuantum>,
    ) {
        let mut update = PeerUpdate::new(self.nodes[of].public);
        update.pq_public_key = Some(key);
        update.post_quantum = Some(post_quantum);
        self.update(at, update);
    }

    /// Returns two peers of each other with hybrid handshakes and no session.
    pub fn hybrid_pair(crypto: &'static Provider, suite: Suite) -> Self {
        let mut net = Self::pair(crypto);
        net.make_hybrid(0, 1, suite);
        net
    }

    pub fn make_hybrid(&mut self, a: usize, b: usize, suite: Suite) {
        for (x, y) in [(a, b), (b, a)] {
            if suite.has_static_keys() {
                self.set_seed(x, Some(seed(x)));
            }
            let key = public(self.crypto, y, suite);
            self.set_hybrid(x, y, key, Some(PostQuantum::Require));
        }
    }

    /// Returns the suite of the session with which `at` sends to `of`, if there is a session.
    pub fn suite(&mut self, at: usize, of: usize) -> Option<Option<Suite>> {
        let key = self.nodes[of].public;
        self.nodes[at].current(&key).map(|session| session.suite())
    }
}

/// An attacker that has every X25519 private key of `victim` and all public keys, and claims to
/// be `victim`.
pub struct Thief {
    crypto: &'static Provider,
    keys: StaticKeys,
    hybrid: LocalKeys,
    remote: RemoteKeys,
    suite: Suite,
    random: TestRandom,
}

/// A handshake that the attacker has begun.
pub struct Begun {
    initiator: HybridInitiator,
    pub parts: Vec<Vec<u8>>,
}

impl Thief {
    pub fn new(net: &Net, victim: usize, target: usize, suite: Suite) -> Self {
        Self::with_seed(net, victim, target, suite, 99)
    }

    /// Returns a sender with all keys of `victim`, and so equivalent to it.
    pub fn knows_all(net: &Net, victim: usize, target: usize, suite: Suite) -> Self {
        Self::with_seed(net, victim, target, suite, victim)
    }

    fn with_seed(net: &Net, victim: usize, target: usize, suite: Suite, of: usize) -> Self {
        let crypto = net.crypto;
        let keys = StaticKeys::new(crypto, net.nodes[victim].private.clone());
        let theirs = public(crypto, victim, suite);
        let identity = RemoteKeys::new(crypto, keys.public, theirs).identity;
        let remote = public(crypto, target, suite);
        Self {
            crypto,
            hybrid: LocalKeys::pretending(crypto, &keys, &seed(of), suite, identity),
            keys,
            remote: RemoteKeys::new(crypto, net.nodes[target].public, remote),
            suite,
            random: TestRandom::new(4711, SharedNumbers::default()),
        }
    }

    fn local(&self) -> Local<'_> {
        Local {
            keys: &self.keys,
            hybrid: &self.hybrid,
        }
    }

    /// Begins a handshake.
    pub fn begin(&mut self, index: u32, label: Tai64N) -> Begun {
        let crypto = self.crypto;
        let precomputed = Precomputed::new(crypto, &self.keys, &self.remote.public_key);
        let local = Local {
            keys: &self.keys,
            hybrid: &self.hybrid,
        };
        let (initiator, mut parts) = HybridInitiator::start(
            crypto,
            local,
            &self.remote,
            &PresharedKey::NONE,
            &precomputed.expect("not of low order"),
            &mut self.random,
            label,
            index,
        )
        .expect("good keys");
        for part in &mut parts {
            stamp_for(crypto, &self.remote.public_key, part);
        }
        Begun { initiator, parts }
    }

    /// Processes a response. `None` if it needs a key that the attacker does not have.
    pub fn finish(&self, begun: &Begun, response: &[Vec<u8>]) -> Option<TransportKeys> {
        let psk = PresharedKey::NONE;
        let after = begun
            .initiator
            .read_part_a(self.crypto, self.local(), &psk, &response[0]);
        let halfway: AwaitingPartB = match after.ok()? {
            PartAOutcome::Complete(keys) => return Some(keys),
            PartAOutcome::NeedsPartB(halfway) => halfway,
        };
        let keys = halfway.read_part_b(self.crypto, self.local(), &psk, &response[1]);
        keys.ok()
    }

    /// Sends the parts of an initiation to a node.
    pub fn send(&self, net: &mut Net, to: usize, from: SocketAddr, begun: &Begun) {
        for part in &begun.parts {
            net.inject(to, from, part);
        }
    }

    /// Sends the parts of an initiation to a node and processes its response. `None` if the node
    /// does not answer, or if the response needs a key that the attacker does not have.
    pub fn shake(
        &self,
        net: &mut Net,
        to: usize,
        from: SocketAddr,
        begun: &Begun,
    ) -> Option<RawSession> {
        let mark = net.mark();
        self.send(net, to, from, begun);
        let response: Vec<_> = net.since(mark, to).into_iter().map(|d| d.bytes).collect();
        let remote_index = word(response.first()?, 4);
        let keys = self.finish(begun, &response)?;
        Some(RawSession::new(self.crypto, keys, remote_index))
    }

    /// Makes a cookie reply to a message that was sent to the attacker. Its key is derived from
    /// the claimed public key.
    pub fn cookie_reply(&self, message: &[u8]) -> Vec<u8> {
        let crypto = self.crypto;
        let key = crypto.hash.hash(&[b"cookie--", &self.keys.public.0]);
        let mac1 = &message[message.len() - 32..message.len() - 16];
        let mut sealed = [0x55; 32];
        let nonce = [7; 24];
        crypto
            .aead
            .xseal_with(&Secret::new(key), &nonce, mac1, &mut sealed);
        let mut reply = vec![3, 0, 0, 0];
        reply.extend(&message[4..8]);
        reply.extend(nonce);
        reply.extend(sealed);
        reply
    }

    pub fn identity(&self) -> Identity {
        *self.hybrid.identity(self.suite).expect("of the suite")
    }
}

//! Cost of a handshake for each side, and of its cryptographic operations. A responder cannot do
//! with fewer than four scalar multiplications: they are the lower bound.
//!
//! The benchmarks measure only the cryptographic messages, between peers that have met before,
//! without MACs, sessions and peers. The laboratory's table `handshake-pq` measures complete
//! devices.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use divan::{Bencher, black_box};
use taupe_crypto::{Agreement, BASE_POINT, Provider, Secret, SharedSecret};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::testing::noise::{
    Claim, InitiationFields, Initiator, Precomputed, StaticKeys, TransportKeys,
};
use taupe_protocol::testing::{LocalKeys, RemoteKeys, hybrid_noise as hybrid};
use taupe_protocol::time::{Instant, Now, Tai64N};
use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{Device, Endpoint, HandshakeQueue, Random, TakenHandshakes};

fn main() {
    divan::main();
}

/// Reads an initiation and makes the response.
#[divan::bench(args = providers())]
fn responder(bencher: Bencher<'_, '_>, provider: &str) {
    let pair = Pair::new(provider);
    bencher
        .with_inputs(|| pair.initiate().1)
        .bench_local_values(|initiation| {
            let ephemeral = Secret::new([5; 32]);
            let claim = Claim::open(pair.crypto, &pair.responder, initiation, ephemeral).unwrap();
            let responder = claim.verify(pair.crypto, &pair.precomputed[1]).unwrap();
            responder.respond(pair.crypto, &PresharedKey::NONE)
        });
}

/// Makes an initiation and reads the response.
#[divan::bench(args = providers())]
fn initiator(bencher: Bencher<'_, '_>, provider: &str) {
    let pair = Pair::new(provider);
    let (_, initiation) = pair.initiate();
    let ephemeral = Secret::new([5; 32]);
    let claim = Claim::open(pair.crypto, &pair.responder, initiation, ephemeral).unwrap();
    let responder = claim.verify(pair.crypto, &pair.precomputed[1]).unwrap();
    let (response, _) = responder.respond(pair.crypto, &PresharedKey::NONE).unwrap();
    bencher.bench_local(|| {
        let (initiator, _) = pair.initiate();
        // Always the same initiation, because the response answers that one.
        initiator.finish(pair.crypto, &pair.initiator, &PresharedKey::NONE, &response)
    });
}

/// Makes a hybrid initiation and reads the response.
#[divan::bench(args = suites())]
fn hybrid_initiator(bencher: Bencher<'_, '_>, suite: &str) {
    let pair = HybridPair::new(suite);
    let (state, initiation) = pair.initiate();
    let response = pair.respond(&initiation);
    bencher.bench_local(|| {
        let made = pair.initiate();
        // Always the same initiation, because the response answers that one.
        (made, pair.finish(&state, &response))
    });
}

/// Reads a hybrid initiation and makes the response.
#[divan::bench(args = suites())]
fn hybrid_responder(bencher: Bencher<'_, '_>, suite: &str) {
    let pair = HybridPair::new(suite);
    bencher
        .with_inputs(|| pair.initiate().1)
        .bench_local_refs(|initiation| pair.respond(initiation));
}

/// A device refuses a forged initiation (for hybrid suites its first part): one with a wrong
/// mac1, or one with random content and a valid mac1, from a sender that knows the public key.
#[divan::bench(args = [
    "x25519, mac1",
    "x25519, content",
    "hybrid-768, mac1",
    "hybrid-768, content",
])]
fn forged(bencher: Bencher<'_, '_>, what: &str) {
    let crypto = taupe_crypto::default_provider();
    let (mut device, public) = device(crypto);
    let mut message = if what.starts_with("x25519") {
        let mut message = vec![7; 148];
        message[..4].copy_from_slice(&[1, 0, 0, 0]);
        message
    } else {
        let mut message = vec![7; 1232];
        message[..4].copy_from_slice(&[0x48, 3, 0, 0]);
        message
    };
    if what.ends_with("content") {
        let body = message.len() - 32;
        let key = crypto.hash.hash(&[b"mac1----", &public.0]);
        let mac1 = crypto.hash.mac(&key, &[&message[..body]]);
        message[body..body + 16].copy_from_slice(&mac1);
    }
    let from = Endpoint::from(SocketAddr::from(([192, 0, 2, 1], 1)));
    bencher.bench_local(|| device.handle_message(NOW, from, black_box(&message), 0));
}

/// A device answers 64 initiations of as many peers.
#[divan::bench(args = ["one by one", "together"])]
fn flood(bencher: Bencher<'_, '_>, how: &str) {
    let crypto = taupe_crypto::default_provider();
    let (mut device, public) = device(crypto);
    let peers =
        (101..=164).map(|byte| StaticKeys::new(crypto, PrivateKey::new([byte; 32]).unwrap()));
    let peers: Vec<_> = peers
        .map(|keys| {
            let precomputed = Precomputed::new(crypto, &keys, &public).unwrap();
            (keys, precomputed)
        })
        .collect();
    let update = DeviceUpdate {
        peers: (peers.iter().map(|(keys, _)| PeerUpdate::new(keys.public))).collect(),
        ..DeviceUpdate::default()
    };
    device.update(NOW, update).unwrap();
    let from = Endpoint::from(SocketAddr::from(([192, 0, 2, 1], 1)));
    let mac1_key = crypto.hash.hash(&[b"mac1----", &public.0]);
    let mut round = 0_u64;
    let initiations = || {
        round += 1;
        let mut timestamp = Tai64N::ZERO;
        timestamp.0[..8].copy_from_slice(&round.to_be_bytes());
        let mut queue = HandshakeQueue::default();
        for (index, (keys, precomputed)) in (0_u32..).zip(&peers) {
            let ephemeral = Secret::new([index as u8 + 1; 32]);
            let (_, fields) =
                Initiator::start(crypto, keys, &public, precomputed, ephemeral, timestamp).unwrap();
            let mut message = vec![1, 0, 0, 0];
            message.extend(index.to_le_bytes());
            message.extend(fields.ephemeral);
            message.extend(fields.static_key);
            message.extend(fields.timestamp);
            message.extend(crypto.hash.mac(&mac1_key, &[&message]));
            message.extend([0; 16]);
            queue.push(from, &message);
        }
        let mut taken = TakenHandshakes::default();
        queue.take(usize::MAX, &mut taken);
        let boot = Instant(round * 1_000_000_000);
        (Now { boot, ..NOW }, taken)
    };
    bencher
        .with_inputs(initiations)
        .bench_local_refs(|(now, taken)| {
            if how == "together" {
                device.handle_messages(*now, taken, 0, |_, refused| assert_eq!(refused, None));
            } else {
                for message in taken.drain() {
                    let refused = device.handle_message(*now, message.from, message.bytes(), 0);
                    assert_eq!(refused, None);
                }
            }
            while device.poll_output().is_some() {}
        });
}

/// The responder's scalar multiplications: one of the base point, three of other points.
#[divan::bench(args = providers())]
fn responder_floor(bencher: Bencher<'_, '_>, provider: &str) {
    let dh = crypto(provider).dh;
    let publics = [2, 3].map(|byte| dh.public(&[byte; 32]));
    bencher.bench_local(|| {
        let private = black_box(&[1; 32]);
        let [ephemeral, peer] = black_box(&publics)
            .each_ref()
            .map(|public| Agreement { private, public });
        let public = Agreement {
            private,
            public: &BASE_POINT,
        };
        let mut shared = [const { None }; 4];
        let (first, second) = shared.split_at_mut(2);
        if dh.width() == 1 {
            dh.agree_many(&[ephemeral], first);
            black_box(dh.public(private));
        } else {
            dh.agree_many(&[ephemeral, public], first);
        }
        dh.agree_many(&[ephemeral, peer], second);
        shared
    });
}

/// A scalar multiplication of the base point.
#[divan::bench(args = providers())]
fn dh_public(provider: &str) -> [u8; 32] {
    crypto(provider).dh.public(black_box(&[1; 32]))
}

/// A scalar multiplication of another point.
#[divan::bench(args = providers())]
fn dh_agree(provider: &str) -> Option<SharedSecret> {
    let dh = crypto(provider).dh;
    dh.agree(black_box(&[1; 32]), black_box(&[9; 32]))
}

/// Half of the work to derive a key: four blocks of BLAKE2s.
#[divan::bench(args = providers())]
fn hmac(provider: &str) -> Secret<32> {
    let hash = crypto(provider).hash;
    hash.hmac(black_box(&[1; 32]), &[black_box(&[2; 32])])
}

/// The check by which a device refuses an initiation to another device.
#[divan::bench(args = providers())]
fn mac1(provider: &str) -> [u8; 16] {
    let hash = crypto(provider).hash;
    hash.mac(black_box(&[1; 32]), &[black_box(&[2; 116])])
}

/// Sets a key and encrypts a static public key with it.
#[divan::bench(args = providers())]
fn seal(bencher: Bencher<'_, '_>, provider: &str) {
    let aead = crypto(provider).aead;
    let key = Secret::new([1; 32]);
    bencher.with_inputs(|| [0; 48]).bench_local_refs(|data| {
        aead.seal_with(&key, 0, &[3; 32], data);
    });
}

const NOW: Now = Now {
    boot: Instant(1),
    wall: Duration::from_secs(1_700_000_000),
};

/// Returns a device that is up and has all keys.
fn device(crypto: &'static Provider) -> (Device, PublicKey) {
    let private = PrivateKey::new([9; 32]).unwrap();
    let public = PublicKey(crypto.dh.public(private.expose()));
    // Indices of sessions must differ.
    let mut count = 0_u64;
    let counting = move |bytes: &mut [u8]| {
        count += 1;
        for (byte, value) in (bytes.iter_mut()).zip(count.to_le_bytes().into_iter().cycle()) {
            *byte = value;
        }
    };
    let mut device = Device::new(crypto, Box::new(counting), Arc::new(|| {}));
    let update = DeviceUpdate {
        private_key: Some(PrivateKeyUpdate {
            key: Some(private),
            timestamp_floor: Tai64N::ZERO,
        }),
        pq_private_key: Some(PqPrivateKey::new(Secret::new([9; 64]))),
        ..DeviceUpdate::default()
    };
    device.update(NOW, update).unwrap();
    device.set_up(NOW);
    (device, public)
}

fn suites() -> impl Iterator<Item = &'static str> {
    Suite::ALL.into_iter().map(Suite::name)
}

/// The same bytes every time; sufficient for a measurement.
struct Repeating;

impl Random for Repeating {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill(5);
    }
}

/// Two peers with each other's ML-KEM keys, with the default backend.
struct HybridPair {
    pair: Pair,
    suite: Suite,
    initiator: LocalKeys,
    responder: LocalKeys,
    remotes: [RemoteKeys; 2],
}

impl HybridPair {
    fn new(suite: &str) -> Self {
        let suite = Suite::ALL
            .into_iter()
            .find(|it| it.name() == suite)
            .unwrap();
        let pair = Pair::new(taupe_crypto::default_provider().name);
        let seed = |byte| PqPrivateKey::new(Secret::new([byte; 64])).unwrap();
        let make = |keys: &StaticKeys, byte| {
            let given = suite.has_static_keys().then(|| seed(byte));
            let local = LocalKeys::new(pair.crypto, keys, given.as_ref());
            let public = given.map(|seed| seed.public(pair.crypto, suite));
            (local, RemoteKeys::new(pair.crypto, keys.public, public))
        };
        let (initiator, first) = make(&pair.initiator, 1);
        let (responder, second) = make(&pair.responder, 2);
        Self {
            pair,
            suite,
            initiator,
            responder,
            remotes: [first, second],
        }
    }

    fn initiate(&self) -> (hybrid::HybridInitiator, hybrid::Parts) {
        let local = hybrid::Local {
            keys: &self.pair.initiator,
            hybrid: &self.initiator,
        };
        let psk = PresharedKey::NONE;
        let precomputed = &self.pair.precomputed[0];
        let label = Tai64N::ZERO;
        let remote = &self.remotes[1];
        hybrid::HybridInitiator::start(
            self.pair.crypto,
            local,
            remote,
            &psk,
            precomputed,
            &mut Repeating,
            label,
            1,
        )
        .unwrap()
    }

    fn respond(&self, initiation: &hybrid::Parts) -> hybrid::Parts {
        let crypto = self.pair.crypto;
        let local = hybrid::Local {
            keys: &self.pair.responder,
            hybrid: &self.responder,
        };
        let psk = PresharedKey::NONE;
        let claim = hybrid::HybridClaim::open(crypto, local, self.suite, &initiation[0]).unwrap();
        let remote = &self.remotes[0];
        let mut opened = claim
            .verify(crypto, remote, &psk, &self.pair.precomputed[1])
            .unwrap();
        let ready = match opened.without_part_b() {
            Some(ready) => ready,
            None => opened.read_part_b(crypto, &initiation[1]).unwrap(),
        };
        let label = Tai64N::ZERO;
        let made = ready.respond(crypto, local, remote, &psk, &mut Repeating, label, 2);
        made.unwrap().0
    }

    fn finish(&self, state: &hybrid::HybridInitiator, response: &hybrid::Parts) -> TransportKeys {
        let crypto = self.pair.crypto;
        let local = hybrid::Local {
            keys: &self.pair.initiator,
            hybrid: &self.initiator,
        };
        let psk = PresharedKey::NONE;
        match state
            .read_part_a(crypto, local, &psk, &response[0])
            .unwrap()
        {
            hybrid::PartAOutcome::Complete(keys) => keys,
            hybrid::PartAOutcome::NeedsPartB(awaiting) => awaiting
                .read_part_b(crypto, local, &psk, &response[1])
                .unwrap(),
        }
    }
}

/// Two peers with each other's public keys.
struct Pair {
    crypto: &'static Provider,
    initiator: StaticKeys,
    responder: StaticKeys,
    /// For the initiator, and for the responder.
    precomputed: [Precomputed; 2],
}

impl Pair {
    fn new(provider: &str) -> Self {
        let crypto = crypto(provider);
        let keys = |byte| StaticKeys::new(crypto, PrivateKey::new([byte; 32]).unwrap());
        let (initiator, responder) = (keys(1), keys(2));
        let pairs = [(&initiator, &responder), (&responder, &initiator)];
        let precomputed =
            pairs.map(|(local, remote)| Precomputed::new(crypto, local, &remote.public).unwrap());
        Self {
            precomputed,
            crypto,
            initiator,
            responder,
        }
    }

    fn initiate(&self) -> (Initiator, InitiationFields) {
        Initiator::start(
            self.crypto,
            &self.initiator,
            &self.responder.public,
            &self.precomputed[0],
            Secret::new([3; 32]),
            Tai64N([4; 12]),
        )
        .unwrap()
    }
}

fn providers() -> Vec<&'static str> {
    all().iter().map(|provider| provider.name).collect()
}

fn crypto(name: &str) -> &'static Provider {
    let provider = all().into_iter().find(|provider| provider.name == name);
    provider.unwrap()
}

fn all() -> Vec<&'static Provider> {
    vec![
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC,
        &taupe_crypto::PORTABLE,
    ]
}

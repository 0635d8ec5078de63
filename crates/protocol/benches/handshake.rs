//! What a handshake costs each side, and what its parts cost: the four
//! multiplications that a responder cannot do without are the floor.
//!
//! These are the cryptographic messages alone, of peers that have met before.
//! MACs, sessions and peers come on top: the laboratory's table `handshake-pq`
//! measures whole devices.

use divan::{Bencher, black_box};
use taupe_crypto::{Provider, Secret, SharedSecret};
use taupe_protocol::key::{PresharedKey, PrivateKey};
use taupe_protocol::noise::{Claim, InitiationFields, Initiator, StaticKeys};
use taupe_protocol::time::Tai64N;

fn main() {
    divan::main();
}

/// Takes an initiation and makes the response.
#[divan::bench(args = providers())]
fn responder(bencher: Bencher<'_, '_>, provider: &str) {
    let pair = Pair::new(provider);
    bencher
        .with_inputs(|| pair.initiate().1)
        .bench_local_values(|initiation| {
            let claim = Claim::open(pair.crypto, &pair.responder, initiation).unwrap();
            let responder = claim.verify(pair.crypto, &pair.static_static).unwrap();
            responder.respond(pair.crypto, &PresharedKey::NONE, Secret::new([5; 32]))
        });
}

/// Makes an initiation and takes the response.
#[divan::bench(args = providers())]
fn initiator(bencher: Bencher<'_, '_>, provider: &str) {
    let pair = Pair::new(provider);
    let (_, initiation) = pair.initiate();
    let claim = Claim::open(pair.crypto, &pair.responder, initiation).unwrap();
    let responder = claim.verify(pair.crypto, &pair.static_static).unwrap();
    let ephemeral = Secret::new([5; 32]);
    let (response, _) = responder
        .respond(pair.crypto, &PresharedKey::NONE, ephemeral)
        .unwrap();
    bencher.bench_local(|| {
        let (initiator, _) = pair.initiate();
        // The same initiation each time, so that the response is to it.
        initiator.finish(pair.crypto, &pair.initiator, &PresharedKey::NONE, &response)
    });
}

/// The responder's multiplications: one of the base point, three of others.
#[divan::bench(args = providers())]
fn responder_floor(provider: &str) {
    let dh = crypto(provider).dh;
    black_box(dh.public(black_box(&[1; 32])));
    for point in 9..12 {
        black_box(dh.agree(black_box(&[1; 32]), black_box(&[point; 32])));
    }
}

/// A multiplication of the base point.
#[divan::bench(args = providers())]
fn dh_public(provider: &str) -> [u8; 32] {
    crypto(provider).dh.public(black_box(&[1; 32]))
}

/// A multiplication of another.
#[divan::bench(args = providers())]
fn dh_agree(provider: &str) -> Option<SharedSecret> {
    let dh = crypto(provider).dh;
    dh.agree(black_box(&[1; 32]), black_box(&[9; 32]))
}

/// Half of what derives a key: four blocks of BLAKE2s.
#[divan::bench(args = providers())]
fn hmac(provider: &str) -> Secret<32> {
    let hash = crypto(provider).hash;
    hash.hmac(black_box(&[1; 32]), &[black_box(&[2; 32])])
}

/// What an initiation is refused by when it is for somebody else.
#[divan::bench(args = providers())]
fn mac1(provider: &str) -> [u8; 16] {
    let hash = crypto(provider).hash;
    hash.mac(black_box(&[1; 32]), &[black_box(&[2; 116])])
}

/// Sets a key and seals a static key with it.
#[divan::bench(args = providers())]
fn seal(bencher: Bencher<'_, '_>, provider: &str) {
    let aead = crypto(provider).aead;
    let key = Secret::new([1; 32]);
    bencher.with_inputs(|| [0; 48]).bench_local_refs(|data| {
        aead.seal_with(&key, 0, &[3; 32], data);
    });
}

/// Two that know each other.
struct Pair {
    crypto: &'static Provider,
    initiator: StaticKeys,
    responder: StaticKeys,
    static_static: SharedSecret,
}

impl Pair {
    fn new(provider: &str) -> Self {
        let crypto = crypto(provider);
        let keys = |byte| StaticKeys::new(crypto, PrivateKey::new([byte; 32]).unwrap());
        let (initiator, responder) = (keys(1), keys(2));
        let secret = crypto
            .dh
            .agree(initiator.private.expose(), &responder.public.0);
        Self {
            static_static: secret.unwrap(),
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
            &self.static_static,
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

//! docs/vectors/hybrid.txt: complete handshakes from fixed inputs, as a reference for other
//! implementations. With `WRITE_VECTORS=1` this test writes the file; otherwise it compares the
//! file with the code's output.

use std::fmt::Write as _;
use std::path::Path;

use taupe_protocol::Random;
use taupe_protocol::crypto::{Provider, Secret, default_provider};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PresharedKey, PrivateKey};
use taupe_protocol::testing::hybrid_noise::{HybridClaim, HybridInitiator, Local, PartAOutcome};
use taupe_protocol::testing::noise::{Precomputed, StaticKeys, TransportKeys};
use taupe_protocol::testing::{LocalKeys, RemoteKeys};
use taupe_protocol::time::Tai64N;

/// Random source of the vectors: 32 bytes of 0x80, then of 0x81, …
struct Counting(u8);

impl Random for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill(self.0);
        self.0 += 1;
    }
}

struct End {
    keys: StaticKeys,
    seed: PqPrivateKey,
    hybrid: LocalKeys,
}

impl End {
    fn new(crypto: &Provider, byte: u8, suite: Suite) -> Self {
        let keys = StaticKeys::new(crypto, PrivateKey::new([byte; 32]).expect("not zero"));
        let mut seed = Secret::new([byte + 0x10; 64]);
        seed.expose_mut()[32..].fill(byte + 0x20);
        let seed = PqPrivateKey::new(seed).expect("not zero");
        let given = suite.has_static_keys().then_some(&seed);
        let hybrid = LocalKeys::new(crypto, &keys, given);
        Self { keys, seed, hybrid }
    }

    fn local(&self) -> Local<'_> {
        Local {
            keys: &self.keys,
            hybrid: &self.hybrid,
        }
    }

    fn remote(&self, crypto: &Provider, suite: Suite) -> RemoteKeys {
        let key = suite
            .has_static_keys()
            .then(|| self.seed.public(crypto, suite));
        RemoteKeys::new(crypto, self.keys.public, key)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns a handshake in the file's format.
fn handshake(crypto: &Provider, suite: Suite, preshared_key: [u8; 32]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, bytes: &[u8]| {
        let _ = writeln!(text, "{name} = {}", hex(bytes));
    };
    let psk = PresharedKey::new(preshared_key);
    let [initiator, responder] = [1, 2].map(|byte| End::new(crypto, byte, suite));
    for (who, end) in [("initiator", &initiator), ("responder", &responder)] {
        line(&format!("{who}.private_key"), end.keys.private.expose());
        line(&format!("{who}.public_key"), &end.keys.public.0);
        let remote = end.remote(crypto, suite);
        if let Some(key) = &remote.pq_public_key {
            line(&format!("{who}.pq_private_key"), end.seed.expose().expose());
            let hash = crypto.hash.hash(&[key.as_bytes()]);
            line(&format!("{who}.pq_public_key.blake2s"), &hash);
        }
        line(&format!("{who}.identity"), &remote.identity.sent());
    }
    line("preshared_key", psk.expose());
    let timestamp = Tai64N([0x40, 0, 0, 0, 0x65, 0x53, 0xf1, 0, 0x11, 0, 0, 0]);
    let later = Tai64N([0x40, 0, 0, 0, 0x65, 0x53, 0xf1, 1, 0x22, 0, 0, 0]);
    line("initiator.timestamp", &timestamp.0);
    line("responder.timestamp", &later.0);

    let precomputed = |local: &End, remote: &End| {
        Precomputed::new(crypto, &local.keys, &remote.keys.public).expect("not of low order")
    };
    let (state, initiation) = HybridInitiator::start(
        crypto,
        initiator.local(),
        &responder.remote(crypto, suite),
        &psk,
        &precomputed(&initiator, &responder),
        &mut Counting(0x80),
        timestamp,
        0x1122_3344,
    )
    .expect("good keys");
    let claim = HybridClaim::open(crypto, responder.local(), suite, &initiation[0]);
    let from = initiator.remote(crypto, suite);
    let claim = claim.expect("for this responder");
    assert_eq!(*claim.identity(), from.identity.sent());
    let mut opened = claim
        .verify(crypto, &from, &psk, &precomputed(&responder, &initiator))
        .expect("of this initiator");
    assert_eq!(opened.timestamp(), timestamp);
    let ready = match opened.without_part_b() {
        Some(ready) => ready,
        None => opened
            .read_part_b(crypto, &initiation[1])
            .expect("belongs to the first"),
    };
    let (response, theirs) = ready
        .respond(
            crypto,
            responder.local(),
            &from,
            &psk,
            &mut Counting(0xc0),
            later,
            0x5566_7788,
        )
        .expect("good keys");
    assert!(
        response
            .iter()
            .all(|part| state.verify_response_macs(crypto, part))
    );
    let ours = match state.read_part_a(crypto, initiator.local(), &psk, &response[0]) {
        Ok(PartAOutcome::Complete(keys)) => keys,
        Ok(PartAOutcome::NeedsPartB(halfway)) => halfway
            .read_part_b(crypto, initiator.local(), &psk, &response[1])
            .expect("belongs to the first"),
        Err(error) => panic!("{error}"),
    };
    for (name, parts) in [("initiation", &initiation), ("response", &response)] {
        for (part, half) in parts.iter().zip(["a", "b"]) {
            // The MACs of an initiation are those of WireGuard, and left out here.
            let macs = if name == "initiation" { 32 } else { 0 };
            line(&format!("{name}.{half}"), &part[..part.len() - macs]);
        }
    }
    let TransportKeys { send, receive } = ours;
    assert!(send == theirs.receive && receive == theirs.send);
    line("initiator.sends_with", send.expose());
    line("responder.sends_with", receive.expose());
    text
}

const HEAD: &str = "\
# Hybrid handshakes from fixed inputs; docs/post-quantum.md says how. All in hex.
# pq_private_key is d then z. The initiator's generator gives 32 bytes of 80, then of 81, and so
# on; the responder's 32 bytes of c0, then of c1. Parts of initiations are without mac1 and mac2.
# The initiator's index is 0x11223344, the responder's 0x55667788.
";

#[test]
fn handshakes_are_as_documented() {
    let crypto = default_provider();
    let mut made = HEAD.to_owned();
    for suite in Suite::ALL {
        for psk in [[0; 32], [0x77; 32]] {
            let _ = write!(
                made,
                "\n[{}]\n{}",
                suite.name(),
                handshake(crypto, suite, psk)
            );
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors/hybrid.txt");
    if std::env::var_os("WRITE_VECTORS").is_some() {
        std::fs::write(&path, &made).expect("the folder is there");
    }
    let written = std::fs::read_to_string(&path).expect("the vectors are there");
    for (line, (made, written)) in made.lines().zip(written.lines()).enumerate() {
        assert_eq!(made, written, "line {}", line + 1);
    }
    assert_eq!(made.len(), written.len());
}

/// A machine that is set back to a snapshot repeats its generator's output.
#[test]
fn a_generator_that_repeats_itself_draws_other_values_at_another_time() {
    let crypto = default_provider();
    for suite in Suite::ALL {
        let [initiator, responder] = [1, 2].map(|byte| End::new(crypto, byte, suite));
        let psk = PresharedKey::NONE;
        let precomputed = |local: &End, remote: &End| {
            Precomputed::new(crypto, &local.keys, &remote.keys.public).expect("not of low order")
        };
        let initiation = |timestamp: u8| {
            let (_, parts) = HybridInitiator::start(
                crypto,
                initiator.local(),
                &responder.remote(crypto, suite),
                &psk,
                &precomputed(&initiator, &responder),
                &mut Counting(0x80),
                Tai64N([timestamp; 12]),
                1,
            )
            .expect("good keys");
            parts
        };
        let response = |clock: u8| {
            let parts = initiation(1);
            let from = initiator.remote(crypto, suite);
            let claim = HybridClaim::open(crypto, responder.local(), suite, &parts[0]);
            let mut opened = claim
                .and_then(|it| it.verify(crypto, &from, &psk, &precomputed(&responder, &initiator)))
                .expect("of this initiator");
            let ready = match opened.without_part_b() {
                Some(ready) => ready,
                None => opened.read_part_b(crypto, &parts[1]).expect("its part"),
            };
            let clock = Tai64N([clock; 12]);
            let local = responder.local();
            let made = ready.respond(crypto, local, &from, &psk, &mut Counting(0xc0), clock, 2);
            made.expect("good keys").0
        };
        // Ephemeral keys follow the indices.
        assert_eq!(initiation(1)[0][8..40], initiation(1)[0][8..40]);
        assert_ne!(initiation(1)[0][8..40], initiation(2)[0][8..40]);
        assert_eq!(response(1)[0][12..44], response(1)[0][12..44]);
        assert_ne!(response(1)[0][12..44], response(2)[0][12..44]);
    }
}

#[test]
fn both_backends_agree() {
    for suite in Suite::ALL {
        let made = [default_provider(), &taupe_protocol::crypto::PORTABLE]
            .map(|crypto| handshake(crypto, suite, [7; 32]));
        assert_eq!(made[0], made[1]);
    }
}

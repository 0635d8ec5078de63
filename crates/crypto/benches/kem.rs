//! ML-KEM by each backend: microseconds of an operation, and how many times as
//! long it takes as by the backend that is used.
//!
//! Backends are measured in turn, and the median counts, so that a machine with
//! other work is unfair to all alike. `cargo bench -p taupe-crypto --bench kem
//! [ROUNDS]`.

use std::{hint::black_box, time::Instant};
use taupe_crypto::{KemParameters, Provider, Secret};

/// An operation to measure, and how to prepare it from a provider and a parameter set.
const OPERATIONS: [(&str, Make); 4] = [
    ("key from a seed", key_from_seed),
    ("check a key, encapsulate", check_and_encapsulate),
    ("encapsulate", encapsulate),
    ("decapsulate", decapsulate),
];

type Make = fn(&'static Provider, KemParameters) -> Operation;
type Operation = Box<dyn FnMut()>;

fn main() {
    let rounds = std::env::args()
        .find_map(|word| word.parse().ok())
        .unwrap_or(2000);
    let providers = providers();
    print!("{:40}", "µs");
    for provider in &providers {
        print!("{:>20}", provider.name);
    }
    println!();
    for parameters in KemParameters::ALL {
        for (name, make) in OPERATIONS {
            let operations = providers.iter().map(|provider| make(provider, parameters));
            let medians = medians(operations.collect(), rounds);
            print!("{:40}", format!("{parameters:?}: {name}"));
            for median in &medians {
                print!("{median:>10.2} ({:>5.2} x)", median / medians[0]);
            }
            println!();
        }
    }
}

fn providers() -> Vec<&'static Provider> {
    vec![
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC,
        #[cfg(feature = "portable")]
        &taupe_crypto::PORTABLE,
    ]
}

fn key_from_seed(provider: &'static Provider, parameters: KemParameters) -> Operation {
    let seed = Secret::new([7; 64]);
    Box::new(move || {
        black_box(provider.kem.decapsulation_key(parameters, black_box(&seed)));
    })
}

/// Not with a key that is kept: what is done with one that has just come.
fn check_and_encapsulate(provider: &'static Provider, parameters: KemParameters) -> Operation {
    let seed = Secret::new([7; 64]);
    let bytes = provider.kem.decapsulation_key(parameters, &seed);
    let bytes = bytes.encapsulation_key();
    let coins = Secret::new([9; 32]);
    Box::new(move || {
        let key = provider
            .kem
            .encapsulation_key(parameters, black_box(&bytes));
        let key = key.unwrap_or_else(|error| panic!("{error}"));
        black_box(key.encapsulate(black_box(&coins)));
    })
}

fn encapsulate(provider: &'static Provider, parameters: KemParameters) -> Operation {
    let seed = Secret::new([7; 64]);
    let bytes = provider.kem.decapsulation_key(parameters, &seed);
    let key = provider
        .kem
        .encapsulation_key(parameters, &bytes.encapsulation_key())
        .unwrap_or_else(|error| panic!("{error}"));
    let coins = Secret::new([9; 32]);
    Box::new(move || {
        black_box(key.encapsulate(black_box(&coins)));
    })
}

fn decapsulate(provider: &'static Provider, parameters: KemParameters) -> Operation {
    let key = provider
        .kem
        .decapsulation_key(parameters, &Secret::new([7; 64]));
    let (ciphertext, _) = provider
        .kem
        .encapsulation_key(parameters, &key.encapsulation_key())
        .unwrap_or_else(|error| panic!("{error}"))
        .encapsulate(&Secret::new([9; 32]));
    Box::new(move || {
        let shared = key.decapsulate(black_box(&ciphertext));
        black_box(shared.unwrap_or_else(|error| panic!("{error}")));
    })
}

/// Microseconds of each, measured in turn.
fn medians(mut operations: Vec<Operation>, rounds: usize) -> Vec<f64> {
    let mut samples = vec![Vec::with_capacity(rounds); operations.len()];
    for _ in 0..rounds {
        for (operation, samples) in operations.iter_mut().zip(&mut samples) {
            let began = Instant::now();
            operation();
            samples.push(began.elapsed());
        }
    }
    (samples.iter_mut())
        .map(|samples| {
            samples.sort();
            samples[rounds / 2].as_secs_f64() * 1e6
        })
        .collect()
}

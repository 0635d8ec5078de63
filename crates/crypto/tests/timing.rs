//! Searches for secrets that show in the time of agreements, decapsulations and comparisons. The
//! time of batches is tested by `examples/timing.rs` of taupe-chacha.
//!
//! Long, and fair only when optimised, on one processor: `scripts/test --long`,
//! or `cargo test --release -p taupe-crypto --test timing -- --nocapture`
//! under `taskset`. `SAMPLES` says how many of each pair of classes.
#![cfg(not(miri))]

mod common;
#[path = "../../chacha/tests/common/welch.rs"]
mod welch;

use common::{Random, real_providers};
use std::hint::black_box;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use taupe_crypto::{Agreement, KemParameters, Provider, Secret};

/// From here on a difference is likely.
const LIMIT: f64 = 4.5;

/// Calls in a sample of what is shorter than the clock is fine.
const REPEAT: usize = 16;

const MAC_LEN: usize = 16;

/// As long as an initiation without its MACs.
const BODY_LEN: usize = 116;

#[test]
fn times_tell_nothing() {
    let mut report = Report::default();
    // The other providers have the KEM and the hash of the first one, and AWS-LC's X25519.
    for provider in (real_providers().into_iter())
        .filter(|provider| ["aws-lc", "portable"].contains(&provider.name))
    {
        for count in [1, 2, 8] {
            let t = agreements(provider, count);
            let name = format!("{} X25519, {count}: a fixed key, any key", provider.name);
            report.must_agree(&name, t);
        }
        for parameters in [KemParameters::MlKem512, KemParameters::MlKem768] {
            for (name, spoil) in [
                ("a bit changed", change_a_bit as fn(&mut Random, &mut [u8])),
                ("any bytes", fill),
            ] {
                let t = decapsulation(provider, parameters, spoil);
                let name = format!("{} {parameters:?}: valid, {name}", provider.name);
                report.must_agree(&name, t);
            }
        }
        let t = mac(provider, [None, Some(MAC_LEN - 1)]);
        report.must_agree(&format!("{} MAC: right, wrong", provider.name), t);
        let t = mac(provider, [Some(0), Some(MAC_LEN - 1)]);
        let name = format!("{} MAC: wrong at the start, at the end", provider.name);
        report.must_agree(&name, t);
    }
    let same = |a: &Secret<32>, b: &Secret<32>| a == b;
    let t = comparison(same, [None, Some(31)]);
    report.must_agree("secrets: the same, different", t);
    let t = comparison(same, [Some(0), Some(31)]);
    report.must_agree("secrets: different at the start, at the end", t);
    let t = comparison(stops_early, [Some(0), Some(31)]);
    report.must_differ("a loop that stops at the first difference", t);
    report.conclude();
}

#[derive(Default)]
struct Report {
    wrong: Vec<String>,
}

impl Report {
    fn must_agree(&mut self, name: &str, t: f64) {
        self.add(name, t, t < LIMIT);
    }

    /// Checks that a difference is found, which shows that the test can find one.
    fn must_differ(&mut self, name: &str, t: f64) {
        self.add(&format!("{name} (must differ)"), t, t > LIMIT);
    }

    fn add(&mut self, name: &str, t: f64, is_right: bool) {
        let line = format!("|t| = {t:8.2}  {name}");
        println!("{line}");
        if !is_right {
            self.wrong.push(line);
        }
    }

    fn conclude(self) {
        let wrong = self.wrong.join("\n");
        assert!(wrong.is_empty(), "not as it must be:\n{wrong}");
    }
}

/// Compares private keys of zeros with random ones, in `count` agreements with one public key at
/// once.
fn agreements(provider: &Provider, count: usize) -> f64 {
    let dh = provider.dh;
    let public = dh.public(&[7; 32]);
    let make = |random: &mut Random, class: bool| {
        let keep = if class { u8::MAX } else { 0 };
        Secret::new(random.array::<32>().map(|byte| byte & keep))
    };
    let run = |private: &mut Secret<32>| {
        let private = black_box(private.expose());
        let public = &public;
        let agreements = vec![Agreement { private, public }; count];
        let mut shared = vec![None; count];
        time(|| {
            dh.agree_many(&agreements, &mut shared);
            shared.iter().all(Option::is_some)
        })
    };
    measure(make, run)
}

/// Ciphertexts of fresh secrets for one key, and such that `spoil` has changed.
fn decapsulation(
    provider: &Provider,
    parameters: KemParameters,
    spoil: fn(&mut Random, &mut [u8]),
) -> f64 {
    // Whoever is fastest makes the ciphertexts.
    let maker = real_providers()[0].kem;
    let seed = Secret::new([7; 64]);
    let private = provider.kem.decapsulation_key(parameters, &seed);
    let public = maker
        .encapsulation_key(parameters, &private.encapsulation_key())
        .unwrap_or_else(|error| panic!("{error}"));
    let make = |random: &mut Random, class: bool| {
        let (mut ciphertext, _) = public.encapsulate(&Secret::new(random.array()));
        // Both classes get a spoilt copy, and either takes its own.
        let mut spoilt = ciphertext.clone();
        spoil(random, &mut spoilt);
        let keep = if class { u8::MAX } else { 0 };
        for (byte, other) in ciphertext.iter_mut().zip(&spoilt) {
            *byte ^= (*byte ^ other) & keep;
        }
        ciphertext
    };
    let run = |ciphertext: &mut Vec<u8>| {
        // Into the cache, alike for both.
        black_box(ciphertext.iter().fold(0_u8, |sum, byte| sum ^ byte));
        time(|| private.decapsulate(ciphertext).is_ok())
    };
    measure(make, run)
}

fn change_a_bit(random: &mut Random, bytes: &mut [u8]) {
    let bit = random.below(bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
}

fn fill(random: &mut Random, bytes: &mut [u8]) {
    bytes.fill_with(|| random.next() as u8);
}

/// Compares MACs as mac1 and mac2 are compared: wrong at the byte of the class, or right.
fn mac(provider: &Provider, wrong: [Option<usize>; 2]) -> f64 {
    let make = |random: &mut Random, class: bool| {
        let key = random.array::<32>();
        let body = random.array::<BODY_LEN>();
        let mut mac = provider.hash.mac(&key, &[&body]);
        differ(&mut mac, wrong[usize::from(class)]);
        (key, body, mac)
    };
    let run = |(key, body, mac): &mut ([u8; 32], [u8; BODY_LEN], [u8; MAC_LEN])| {
        repeated(|| {
            let computed = provider.hash.mac(key, &[body]);
            bool::from(computed.ct_eq(black_box(mac)))
        })
    };
    measure(make, run)
}

fn comparison(compare: fn(&Secret<32>, &Secret<32>) -> bool, different: [Option<usize>; 2]) -> f64 {
    let make = |random: &mut Random, class: bool| {
        let one = Secret::new(random.array());
        let mut other = one.clone();
        differ(other.expose_mut(), different[usize::from(class)]);
        (one, other)
    };
    let run = |(one, other): &mut (Secret<32>, Secret<32>)| {
        repeated(|| compare(black_box(one), black_box(other)))
    };
    measure(make, run)
}

/// Changes a byte, or none in the same time.
fn differ(bytes: &mut [u8], at: Option<usize>) {
    bytes[at.unwrap_or(0)] ^= u8::from(at.is_some());
}

/// A comparison that is not constant in time.
fn stops_early(one: &Secret<32>, other: &Secret<32>) -> bool {
    let pairs = one.expose().iter().zip(other.expose());
    pairs.into_iter().all(|(a, b)| black_box(a) == black_box(b))
}

fn repeated(operation: impl Fn() -> bool) -> Duration {
    time(|| (0..REPEAT).fold(false, |any, _| any | black_box(operation())))
}

fn time(operation: impl FnOnce() -> bool) -> Duration {
    let began = Instant::now();
    black_box(operation());
    began.elapsed()
}

fn measure<I>(
    make: impl FnMut(&mut Random, bool) -> I,
    run: impl FnMut(&mut I) -> Duration,
) -> f64 {
    let samples = std::env::var("SAMPLES").map_or(1_000_000, |count| {
        count.parse().expect("SAMPLES is a number")
    });
    welch::greatest_t(&welch::sample(make, run, |count| count < samples))
}

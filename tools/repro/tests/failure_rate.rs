//! The rate of decryption failures, calculated and measured.
//!
//! The calculation follows Kyber's authors (round 3, §1.5 and its scripts): each coefficient of the
//! message has an error, a sum of independent products of noise and rounding errors, and is misread
//! if the error exceeds q/4.

use sha3::{Digest, Sha3_256};
use taupe_crypto::Secret;
use taupe_repro::pke::{
    Eta, KYBER512, KYBER768, Parameters, PublicKey, Seeding, TKYBER512, key_pair,
};

const Q: usize = 3329;

/// Rounded so much that decryption fails often.
const LOSSY: (Parameters, Widths) = (
    Parameters::new(2, Eta::Three, 7, 4),
    Widths {
        rank: 2,
        eta1: 3,
        du: 7,
        dv: 4,
    },
);

/// The values of a parameter set that the calculation needs.
struct Widths {
    rank: u32,
    eta1: u32,
    du: u32,
    dv: u32,
}

/// Probability of each number modulo q.
#[derive(Clone)]
struct Distribution(Vec<f64>);

impl Distribution {
    fn zero() -> Self {
        let mut likely = vec![0.0; Q];
        likely[0] = 1.0;
        Self(likely)
    }

    /// Returns centred binomial noise up to `eta`: the difference of the sums of `eta` bits each.
    fn noise(eta: u32) -> Self {
        let mut bits = Self::zero();
        for _ in 0..eta {
            let mut difference = vec![0.0; Q];
            (difference[Q - 1], difference[0], difference[1]) = (0.25, 0.5, 0.25);
            bits = bits.plus(&Self(difference));
        }
        bits
    }

    /// Returns the error of rounding a uniform number to `bits` bits.
    fn rounding(bits: u32) -> Self {
        let (q, steps) = (Q as f64, f64::from(1 << bits));
        let mut likely = vec![0.0; Q];
        for number in 0..Q {
            let rounded = (steps / q * number as f64).round();
            let back = (q / steps * rounded).round() as usize;
            likely[(number + Q - back % Q) % Q] += 1.0 / q;
        }
        Self(likely)
    }

    fn possible(&self) -> impl Iterator<Item = (usize, f64)> {
        let likely = self.0.iter().copied().enumerate();
        likely.filter(|(_, likely)| *likely > 0.0)
    }

    fn plus(&self, other: &Self) -> Self {
        let mut likely = vec![0.0; Q];
        for (a, likely_a) in self.possible() {
            let (straight, wrapped) = other.0.split_at(Q - a);
            for (sum, likely_b) in likely[a..].iter_mut().zip(straight) {
                *sum += likely_a * likely_b;
            }
            for (sum, likely_b) in likely.iter_mut().zip(wrapped) {
                *sum += likely_a * likely_b;
            }
        }
        // Far below any rate here, and slow to multiply.
        for likely in &mut likely {
            if *likely < 1e-100 {
                *likely = 0.0;
            }
        }
        Self(likely)
    }

    fn times(&self, other: &Self) -> Self {
        let mut likely = vec![0.0; Q];
        for (a, likely_a) in self.possible() {
            for (b, likely_b) in other.possible() {
                likely[a * b % Q] += likely_a * likely_b;
            }
        }
        Self(likely)
    }

    /// Returns the sum of 2^`doublings` numbers of this distribution.
    fn doubled(&self, doublings: u32) -> Self {
        (0..doublings).fold(self.clone(), |sum, _| sum.plus(&sum))
    }
}

/// Returns the probability that at least one of a message's 256 bits is misread.
fn calculated(widths: &Widths) -> f64 {
    let key_noise = Distribution::noise(widths.eta1);
    let noise = Distribution::noise(2);
    // ⟨e, r⟩ − ⟨s, e₁ + c_u⟩ + e₂ + c_v, of 256 products for each polynomial.
    let rounded = noise.plus(&Distribution::rounding(widths.du));
    let one = key_noise.times(&key_noise).plus(&key_noise.times(&rounded));
    let polynomial = one.doubled(8);
    let sum = (0..widths.rank).fold(noise, |sum, _| sum.plus(&polynomial));
    let sum = sum.plus(&Distribution::rounding(widths.dv));

    let misread: f64 = sum
        .possible()
        .filter(|(number, _)| (*number).min(Q - number) > Q / 4)
        .map(|(_, likely)| likely)
        .sum();
    // 1 − (1 − p)²⁵⁶, for a p that may be too small to subtract from 1.
    -(256.0 * (-misread).ln_1p()).exp_m1()
}

/// The values of the post and of Kyber's authors: 2⁻²¹·⁵ (their script prints 2⁻²¹·²⁵) for the
/// tweaked set, 2⁻¹³⁹ and 2⁻¹⁶⁴ for the standard ones.
#[test]
fn the_calculated_rate_is_the_published_one() {
    let published = [
        (TKYBER512, 2, 3, 8, 3, -21.3, 0.2),
        (KYBER512, 2, 3, 10, 4, -139.0, 1.0),
        (KYBER768, 3, 2, 10, 4, -164.5, 1.0),
    ];
    for (parameters, rank, eta1, du, dv, rate, within) in published {
        let widths = Widths { rank, eta1, du, dv };
        let logarithm = calculated(&widths).log2();
        assert!(
            (logarithm - rate).abs() < within,
            "{parameters:?}: 2^{logarithm}"
        );
    }
}

#[test]
fn decryption_fails_as_often_as_calculated() {
    const TRIES: u32 = 20_000;
    let (parameters, widths) = LOSSY;
    let rate = calculated(&widths);
    assert!((rate.log2() + 4.6).abs() < 0.1, "2^{}", rate.log2());

    let failures = (0..TRIES)
        .filter(|number| !survives(&parameters, *number))
        .count() as f64;
    let expected = f64::from(TRIES) * rate;
    let deviation = (expected * (1.0 - rate)).sqrt();
    println!("{failures} failures, {expected:.1} ± {deviation:.1} expected");
    // Five standard deviations; the seeds are fixed.
    assert!(
        (failures - expected).abs() < 5.0 * deviation,
        "{failures} failures, {expected} ± {deviation} expected"
    );
}

/// Returns true if a message is unchanged after encryption and decryption.
fn survives(parameters: &Parameters, number: u32) -> bool {
    let random = |purpose: u8| {
        let mut state = Sha3_256::new();
        state.update(number.to_le_bytes());
        state.update([purpose]);
        Secret::new(state.finalize().into())
    };
    let (private, public) = key_pair(parameters, Seeding::Round3, &random(0));
    let public = PublicKey::read(parameters, &public).unwrap();
    let message = random(1);
    let ciphertext = public.encrypt(&message, &random(2));
    private.decrypt(&ciphertext).unwrap() == message
}

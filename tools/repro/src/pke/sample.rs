//! Sampling of polynomials from seeds (FIPS 203 §4.2.2), and the hash that derives the seeds.

use super::ring::{N, Poly, Q};
use sha3::{Digest, Sha3_512};
use shake::{ExtendableOutput, Shake128, Shake256, Update, XofReader};
use zeroize::Zeroizing;

/// Bound of a noise coefficient's absolute value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eta {
    /// ±2.
    Two,
    /// ±3.
    Three,
}

/// Returns SHA3-512 of the concatenated `parts`, in two halves: the function `G`.
pub(crate) fn sha3_512(parts: &[&[u8]]) -> Zeroizing<[[u8; 32]; 2]> {
    let mut state = Sha3_512::new();
    for part in parts {
        Digest::update(&mut state, part);
    }
    let digest = Zeroizing::new(<[u8; 64]>::from(state.finalize()));
    let mut halves = Zeroizing::new([[0; 32]; 2]);
    halves[0].copy_from_slice(&digest[..32]);
    halves[1].copy_from_slice(&digest[32..]);
    halves
}

/// Samples a transform with uniform coefficients (FIPS 203, algorithm 7): expands `seed` and two
/// indices, and accepts every 12-bit value below q. All inputs are public, so the time may depend
/// on them.
pub(super) fn uniform(seed: &[u8; 32], [first, second]: [u8; 2]) -> Poly {
    /// Bytes that SHAKE128 produces at once.
    const BLOCK: usize = 168;
    let mut stream = Shake128::default();
    stream.update(seed);
    stream.update(&[first, second]);
    let mut stream = stream.finalize_xof();

    // Space for the two candidates that are written before the comparison accepts them.
    let mut taken = [0_i16; N + 2];
    let mut count = 0;
    let mut block = [0; BLOCK];
    while count < N {
        stream.read(&mut block);
        for bytes in block.chunks_exact(3) {
            if count >= N {
                break;
            }
            let middle = i16::from(bytes[1]);
            let candidates = [
                i16::from(bytes[0]) | (middle & 0xf) << 8,
                middle >> 4 | i16::from(bytes[2]) << 4,
            ];
            for candidate in candidates {
                taken[count] = candidate;
                count += usize::from(candidate < Q);
            }
        }
    }
    let mut poly = Poly::ZERO;
    poly.0.copy_from_slice(&taken[..N]);
    poly
}

/// Samples a noise polynomial: coefficients of a centred binomial distribution (FIPS 203, algorithm
/// 8) from `seed` and a number that is used once with it.
pub(super) fn noise(eta: Eta, seed: &[u8; 32], number: u8) -> Poly {
    let mut stream = Shake256::default();
    stream.update(seed);
    stream.update(&[number]);
    let mut stream = stream.finalize_xof();
    let mut poly = Poly::ZERO;
    match eta {
        Eta::Two => {
            let mut bytes = Zeroizing::new([0; 64 * 2]);
            stream.read(&mut bytes[..]);
            for (coefficients, bytes) in poly.0.chunks_exact_mut(8).zip(bytes.chunks_exact(4)) {
                let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                binomial::<2>(bits, 0x5555_5555, coefficients);
            }
        }
        Eta::Three => {
            let mut bytes = Zeroizing::new([0; 64 * 3]);
            stream.read(&mut bytes[..]);
            for (coefficients, bytes) in poly.0.chunks_exact_mut(4).zip(bytes.chunks_exact(3)) {
                let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
                binomial::<3>(bits, 0x0024_9249, coefficients);
            }
        }
    }
    poly
}

/// Sets each coefficient to the number of set bits in a run of `ETA` bits minus that in the next
/// run. `each` has a bit at every multiple of `ETA`.
fn binomial<const ETA: u32>(bits: u32, each: u32, coefficients: &mut [i16]) {
    // Replaces every run of `ETA` bits by its number of set bits.
    let counts = (0..ETA).map(|i| bits >> i & each).sum::<u32>();
    for (i, coefficient) in (0..).zip(coefficients) {
        let count = |run: u32| (counts >> (run * ETA) & ((1 << ETA) - 1)) as i16;
        *coefficient = count(2 * i) - count(2 * i + 1);
    }
}

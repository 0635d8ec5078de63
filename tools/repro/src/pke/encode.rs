//! Encoding of polynomials as bytes, exact or rounded to fewer bits for each coefficient (FIPS 203
//! §4.2.1).

use super::ring::{N, Poly, Q};

/// Appends `poly`, whose coefficients are in [0, q), with 12 bits for each.
pub(super) fn write_whole(poly: &Poly, out: &mut Vec<u8>) {
    pack::<12>(|i| poly.0[i] as u16, out);
}

/// Reads the bytes of [`write_whole`]. Coefficients may be q or more, up to 4095.
pub(super) fn read_whole(bytes: &[u8]) -> Poly {
    unpack::<12>(bytes, |value| value as i16)
}

/// Returns true if every coefficient is below q.
pub(super) fn is_reduced(poly: &Poly) -> bool {
    poly.0.iter().all(|coefficient| *coefficient < Q)
}

/// Appends `poly`, whose coefficients are in [0, q), rounded to `bits` bits for each.
pub(super) fn write_rounded(bits: u8, poly: &Poly, out: &mut Vec<u8>) {
    fn write<const BITS: u32>(poly: &Poly, out: &mut Vec<u8>) {
        pack::<BITS>(|i| compress::<BITS>(poly.0[i] as u16), out);
    }
    match bits {
        1 => write::<1>(poly, out),
        2 => write::<2>(poly, out),
        3 => write::<3>(poly, out),
        4 => write::<4>(poly, out),
        5 => write::<5>(poly, out),
        6 => write::<6>(poly, out),
        7 => write::<7>(poly, out),
        8 => write::<8>(poly, out),
        9 => write::<9>(poly, out),
        10 => write::<10>(poly, out),
        _ => write::<11>(poly, out),
    }
}

/// Reads the bytes of [`write_rounded`], as the nearest values.
pub(super) fn read_rounded(bits: u8, bytes: &[u8]) -> Poly {
    fn read<const BITS: u32>(bytes: &[u8]) -> Poly {
        unpack::<BITS>(bytes, decompress::<BITS>)
    }
    match bits {
        1 => read::<1>(bytes),
        2 => read::<2>(bytes),
        3 => read::<3>(bytes),
        4 => read::<4>(bytes),
        5 => read::<5>(bytes),
        6 => read::<6>(bytes),
        7 => read::<7>(bytes),
        8 => read::<8>(bytes),
        9 => read::<9>(bytes),
        10 => read::<10>(bytes),
        _ => read::<11>(bytes),
    }
}

/// Returns 2^BITS/q times `value`, rounded, modulo 2^BITS. It divides by an explicit
/// multiplication, because the time of a division instruction would reveal the value.
fn compress<const BITS: u32>(value: u16) -> u16 {
    /// 2³⁶/q, rounded up: exact for dividends below 2²⁴.
    const RECIPROCAL: u64 = (1_u64 << 36).div_ceil(Q as u64);
    let dividend = (u64::from(value) << BITS) + Q as u64 / 2;
    ((dividend * RECIPROCAL) >> 36) as u16 & ((1 << BITS) - 1)
}

/// Returns q/2^BITS times `value`, rounded.
fn decompress<const BITS: u32>(value: u16) -> i16 {
    ((u32::from(value) * Q as u32 + (1 << (BITS - 1))) >> BITS) as i16
}

/// Appends values of `BITS` bits each, the lowest bit first: eight values take `BITS` bytes.
fn pack<const BITS: u32>(value: impl Fn(usize) -> u16, out: &mut Vec<u8>) {
    for group in 0..N / 8 {
        let bits = (0..8).fold(0, |bits, i| {
            bits | u128::from(value(8 * group + i)) << (i as u32 * BITS)
        });
        out.extend_from_slice(&bits.to_le_bytes()[..BITS as usize]);
    }
}

/// The inverse of [`pack`].
fn unpack<const BITS: u32>(bytes: &[u8], coefficient: impl Fn(u16) -> i16) -> Poly {
    let mut poly = Poly::ZERO;
    let groups = bytes.chunks_exact(BITS as usize);
    for (coefficients, group) in poly.0.chunks_exact_mut(8).zip(groups) {
        let mut padded = [0; 16];
        padded[..group.len()].copy_from_slice(group);
        let bits = u128::from_le_bytes(padded);
        for (i, place) in (0..).zip(coefficients) {
            *place = coefficient((bits >> (i * BITS)) as u16 & ((1 << BITS) - 1));
        }
    }
    poly
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_rounding<const BITS: u32>() {
        let q = f64::from(Q);
        let steps = f64::from(1 << BITS);
        for value in 0..Q as u16 {
            let expected = (steps / q * f64::from(value)).round() as u32 % (1 << BITS);
            assert_eq!(
                u32::from(compress::<BITS>(value)),
                expected,
                "{BITS} {value}"
            );
        }
        for value in 0..1_u16 << BITS {
            // A tie is rounded up; since q is odd, a tie occurs only with one bit.
            let expected = (q / steps * f64::from(value)).round() as i16;
            assert_eq!(decompress::<BITS>(value), expected, "{BITS} {value}");
            assert_eq!(compress::<BITS>(expected as u16), value, "{BITS} {value}");
        }
    }

    #[test]
    fn rounding_is_to_the_nearest() {
        check_rounding::<1>();
        check_rounding::<3>();
        check_rounding::<4>();
        check_rounding::<5>();
        check_rounding::<7>();
        check_rounding::<8>();
        check_rounding::<10>();
        check_rounding::<11>();
    }

    #[test]
    fn bytes_hold_what_was_written() {
        let poly = Poly(std::array::from_fn(|i| (i as i16 * 13) % Q));
        let mut bytes = Vec::new();
        write_whole(&poly, &mut bytes);
        assert_eq!(bytes.len(), 384);
        assert_eq!(read_whole(&bytes).0, poly.0);
        for bits in 1..=11 {
            let mut bytes = Vec::new();
            write_rounded(bits, &poly, &mut bytes);
            assert_eq!(bytes.len(), 32 * usize::from(bits));
            let mut again = Vec::new();
            write_rounded(bits, &read_rounded(bits, &bytes), &mut again);
            assert_eq!(again, bytes, "{bits}");
        }
    }
}

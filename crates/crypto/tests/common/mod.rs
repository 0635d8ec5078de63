//! What the tests share.
#![allow(dead_code, reason = "not every test file uses all of it")]

use taupe_crypto::{Provider, TAG_LEN};

/// Every provider that computes what the standards say.
pub(crate) fn real_providers() -> Vec<&'static Provider> {
    vec![
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC,
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC_SINGLE,
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC_NARROW,
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC_WIDE,
        #[cfg(feature = "portable")]
        &taupe_crypto::PORTABLE,
    ]
}

/// Every provider, the fake one too.
pub(crate) fn all_providers() -> Vec<&'static Provider> {
    #[allow(unused_mut, reason = "without the feature `fake` there is none to add")]
    let mut providers = real_providers();
    #[cfg(feature = "fake")]
    providers.push(&taupe_crypto::FAKE);
    providers
}

/// Bytes from hexadecimal digits; blanks are skipped.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("a hexadecimal digit") as u8)
        .collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    assert!(rest.is_empty(), "an odd number of digits");
    pairs.iter().map(|[high, low]| high << 4 | low).collect()
}

/// As [`hex`], of a length that must fit.
pub(crate) fn hex_array<const N: usize>(digits: &str) -> [u8; N] {
    hex(digits).try_into().expect("the length of the array")
}

/// `plaintext` with room for the tag.
pub(crate) fn with_room(plaintext: &[u8]) -> Vec<u8> {
    let mut data = plaintext.to_vec();
    data.extend([0xaa; TAG_LEN]);
    data
}

/// Bytes that look random and are the same in every run (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

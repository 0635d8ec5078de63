//! Helpers that the tests share.
#![allow(
    dead_code,
    unused_imports,
    reason = "not every test file uses all of it"
)]

#[path = "../../../chacha/tests/common/random.rs"]
mod random;

pub(crate) use random::Random;

use taupe_crypto::{Provider, TAG_LEN};

/// Every provider that computes what the standards say.
pub(crate) fn real_providers() -> Vec<&'static Provider> {
    vec![
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC,
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC_SINGLE,
        #[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
        &taupe_crypto::AWS_LC_AVX2,
        #[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
        &taupe_crypto::AWS_LC_GROUPED,
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

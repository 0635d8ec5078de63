//! X25519 by AWS-LC's own functions, which take bytes.
//!
//! `aws_lc_rs::agreement` has safe ones. But a key object of it multiplies the
//! base point whenever it is made, whether or not the public key is wanted: a
//! quarter of the time of an agreement.

#![allow(unsafe_code)]

use super::AwsLc;
#[cfg(target_arch = "x86_64")]
use crate::x25519::VectorX25519;
use crate::{Agreement, Dh, SharedSecret};

impl Dh for AwsLc {
    fn public(&self, private: &[u8; 32]) -> [u8; 32] {
        let mut public = [0; 32];
        // SAFETY: it writes 32 bytes at the first pointer and reads 32 at the
        // second. Both arrays have them, and do not overlap. It takes every key
        // and keeps no pointer.
        unsafe { aws_lc_sys::X25519_public_from_private(public.as_mut_ptr(), private.as_ptr()) };
        public
    }

    fn agree(&self, private: &[u8; 32], public: &[u8; 32]) -> Option<SharedSecret> {
        let mut shared = [None];
        self.agree_many(&[Agreement { private, public }], &mut shared);
        let [shared] = shared;
        shared
    }

    fn agree_many(&self, agreements: &[Agreement<'_>], shared: &mut [Option<SharedSecret>]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(vectors) = self.vectors() {
            return vectors.agree(agreements, shared);
        }
        for (agreement, shared) in agreements.iter().zip(shared) {
            *shared = ladder(agreement);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn width(&self) -> usize {
        self.vectors().map_or(1, |_| VectorX25519::LANES)
    }
}

impl AwsLc {
    #[cfg(target_arch = "x86_64")]
    fn vectors(&self) -> Option<VectorX25519> {
        self.batches.avx512().and_then(|_| VectorX25519::detect())
    }
}

fn ladder(agreement: &Agreement<'_>) -> Option<SharedSecret> {
    let mut shared = SharedSecret::zeroed();
    let output = shared.expose_mut().as_mut_ptr();
    let (private, public) = (agreement.private.as_ptr(), agreement.public.as_ptr());
    // SAFETY: the function writes 32 bytes at the first pointer and reads 32
    // at each of the others. All three arrays have 32 bytes, and the first
    // overlaps neither of the others. The function takes every key and stores
    // no pointer.
    let agreed = unsafe { aws_lc_sys::X25519(output, private, public) };
    // The function returns 0 if the secret is zero. It compares in constant time.
    (agreed == 1).then_some(shared)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use crate::x25519::VectorX25519;
    use crate::{AWS_LC, AWS_LC_AVX2, AWS_LC_GROUPED, AWS_LC_SINGLE};

    #[test]
    fn providers_without_avx512_compute_one_agreement_at_a_time() {
        let lanes = VectorX25519::detect().map_or(1, |_| VectorX25519::LANES);
        for provider in [&AWS_LC, &AWS_LC_GROUPED] {
            assert_eq!(provider.dh.width(), lanes, "{}", provider.name);
        }
        for provider in [&AWS_LC_SINGLE, &AWS_LC_AVX2] {
            assert_eq!(provider.dh.width(), 1, "{}", provider.name);
        }
    }
}

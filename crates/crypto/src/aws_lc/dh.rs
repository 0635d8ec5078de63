//! X25519 by AWS-LC's own functions, which take bytes.
//!
//! `aws_lc_rs::agreement` has safe ones. But a key object of it multiplies the
//! base point whenever it is made, whether or not the public key is wanted: a
//! quarter of the time of an agreement.

#![allow(unsafe_code)]

use super::AwsLc;
use crate::{Dh, SharedSecret};
#[cfg(target_arch = "x86_64")]
use crate::{
    PreparedKey,
    edwards::{self, Edwards},
};

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
        let mut shared = SharedSecret::zeroed();
        let output = shared.expose_mut().as_mut_ptr();
        // SAFETY: it writes 32 bytes at the first pointer and reads 32 at each of
        // the others. All three arrays have them, and the first overlaps neither
        // of the others. It takes every key and keeps no pointer.
        let agreed = unsafe { aws_lc_sys::X25519(output, private.as_ptr(), public.as_ptr()) };
        // It has compared the result with zeros, in constant time; 0 says so.
        (agreed == 1).then_some(shared)
    }

    #[cfg(target_arch = "x86_64")]
    fn prepare(&self, public: &[u8; 32]) -> PreparedKey {
        let mut prepared = PreparedKey::new(public);
        if self.batches.avx512().is_some() && edwards::is_faster() {
            prepared.edwards = Edwards::new(public);
        }
        prepared
    }

    #[cfg(target_arch = "x86_64")]
    fn agree_prepared(&self, private: &[u8; 32], public: &PreparedKey) -> Option<SharedSecret> {
        match &public.edwards {
            Some(point) => point.agree(private),
            None => self.agree(private, public.as_bytes()),
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::edwards;
    use crate::{AWS_LC, AWS_LC_AVX2, AWS_LC_GROUPED, AWS_LC_SINGLE, Provider};

    #[test]
    fn who_does_without_avx512_keeps_to_the_ladder() {
        let on_edwards = |provider: &Provider| {
            let public = provider.dh.public(&[7; 32]);
            provider.dh.prepare(&public).edwards.is_some()
        };
        for provider in [&AWS_LC, &AWS_LC_GROUPED] {
            assert_eq!(
                on_edwards(provider),
                edwards::is_faster(),
                "{}",
                provider.name
            );
        }
        for provider in [&AWS_LC_SINGLE, &AWS_LC_AVX2] {
            assert!(!on_edwards(provider), "{}", provider.name);
        }
    }
}

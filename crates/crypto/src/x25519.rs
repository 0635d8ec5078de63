//! X25519 (RFC 7748) of several keys side by side, with AVX-512 IFMA.
//!
//! | module | contents |
//! |---|---|
//! | `element` | an element of the field, in words |
//! | `lanes` | eight elements of the field, in vectors |
//! | `ladder` | scalar multiplications side by side |
//!
//! It needs AVX-512 F, DQ and IFMA: Ice Lake, Zen 4 and later.
//!
//! No branch and no address depends on a secret. Registers, and values that the compiler spills to
//! the stack, are not cleared. Miri does not know these instructions.
#![allow(
    unsafe_code,
    reason = "vector instructions: loads, stores, and calls after detection"
)]

mod element;
mod ladder;
mod lanes;
#[cfg(test)]
mod tests;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::dh::Agreement;
use crate::secret::SharedSecret;
use element::invert_all;
use ladder::{Multiplication, Quotient, multiply_eight, multiply_two};
use lanes::LANES;

/// Up to this number, agreements are computed in pairs, which takes less time than eight at once.
const FEW: usize = 4;

/// X25519 with the instructions of this processor.
#[derive(Clone, Copy)]
pub(crate) struct VectorX25519(());

impl VectorX25519 {
    /// Agreements that are computed in one go.
    pub(crate) const LANES: usize = LANES;

    /// Returns `None` on a processor without the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512ifma");
        has_all.then_some(Self(()))
    }

    /// See [`crate::Dh::agree_many`].
    pub(crate) fn agree(self, agreements: &[Agreement<'_>], shared: &mut [Option<SharedSecret>]) {
        let length = agreements.len().min(shared.len());
        let mut agreements = &agreements[..length];
        let mut shared = &mut shared[..length];
        while !agreements.is_empty() {
            let count = agreements
                .len()
                .min(if agreements.len() > FEW { LANES } else { 2 });
            let (now, later) = agreements.split_at(count);
            let (place, rest) = core::mem::take(&mut shared).split_at_mut(count);
            if count > 2 {
                // SAFETY: there is no value of this type without the instructions.
                agree_in(now, place, |it| unsafe { multiply_eight(it) });
            } else {
                // SAFETY: as above.
                agree_in(now, place, |it| unsafe { multiply_two(it) });
            }
            (agreements, shared) = (later, rest);
        }
    }
}

/// Computes at most `N` agreements with a function that multiplies `N` points.
fn agree_in<const N: usize>(
    agreements: &[Agreement<'_>],
    shared: &mut [Option<SharedSecret>],
    multiply: impl FnOnce([&Multiplication; N]) -> [Quotient; N],
) {
    let Some(last) = agreements.len().checked_sub(1) else {
        return;
    };
    // Unused lanes repeat the last agreement.
    let multiplications = core::array::from_fn::<_, N, _>(|i| {
        let Agreement { private, public } = agreements[i.min(last)];
        Multiplication::new(private, public)
    });
    let quotients = Zeroizing::new(multiply(multiplications.each_ref()));
    let mut inverses = Zeroizing::new(quotients.map(|it| it.z));
    invert_all(&mut inverses);
    for ((shared, quotient), inverse) in shared.iter_mut().zip(&*quotients).zip(&*inverses) {
        let mut secret = SharedSecret::zeroed();
        *secret.expose_mut() = quotient.x.mul(inverse).to_bytes();
        let is_zero: bool = secret.expose().ct_eq(&[0; 32]).into();
        *shared = (!is_zero).then_some(secret);
    }
}

//! Bytes that must not outlive their use.

use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// `N` secret bytes, zeroised on drop.
///
/// It has neither `Debug` nor `Display`, so that it cannot reach a log:
///
/// ```compile_fail,E0277
/// println!("{:?}", taupe_crypto::Secret::new([7; 32]));
/// ```
///
/// `==` takes the same time wherever two secrets differ.
///
/// Moving a `Secret` copies its bytes, and a copy the compiler leaves behind
/// on the stack is out of reach; the same holds for the array given to
/// [`new`](Self::new). Keep long-lived secrets behind a pointer, or fill them
/// in place with [`zeroed`](Self::zeroed) and
/// [`expose_mut`](Self::expose_mut).
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret<const N: usize>([u8; N]);

/// Stack that a handshake or a change of the configuration uses, at most, in bytes: see
/// [`erase_dead_stack`](crate::erase_dead_stack). A scan found secrets up to 23 KiB below the caller.
pub const HANDSHAKE_STACK: usize = 32 << 10;

/// The result of a DH or a KEM, shared by two parties.
pub type SharedSecret = Secret<32>;

impl<const N: usize> Secret<N> {
    /// Takes ownership of `bytes`.
    pub const fn new(bytes: [u8; N]) -> Self {
        Self(bytes)
    }

    /// `N` zero bytes, to be filled through [`expose_mut`](Self::expose_mut).
    pub const fn zeroed() -> Self {
        Self([0; N])
    }

    /// The bytes. Whoever copies them is responsible for the copy.
    pub const fn expose(&self) -> &[u8; N] {
        &self.0
    }

    /// The bytes, to be filled in place.
    pub const fn expose_mut(&mut self) -> &mut [u8; N] {
        &mut self.0
    }
}

impl<const N: usize> ConstantTimeEq for Secret<N> {
    fn ct_eq(&self, other: &Self) -> subtle::Choice {
        self.0.ct_eq(&other.0)
    }
}

impl<const N: usize> PartialEq for Secret<N> {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl<const N: usize> Eq for Secret<N> {}

//! The guarantees of a `Secret`.

use std::mem::MaybeUninit;
use taupe_crypto::{Secret, SharedSecret};

#[test]
fn a_dropped_secret_leaves_zeros() {
    const { assert!(size_of::<Secret<32>>() == 32) };
    let mut storage = MaybeUninit::new(Secret::new([0xa5_u8; 32]));
    let place = storage.as_mut_ptr();
    // SAFETY: `place` points to the secret just written, which is dropped here
    // and not again: `MaybeUninit` never drops what it holds.
    unsafe { place.drop_in_place() };
    // SAFETY: dropping ended the value, not its storage, which `storage` still
    // owns; its 32 bytes were initialised, none of them is padding, and any 32
    // bytes are a valid array.
    let left = unsafe { place.cast::<[u8; 32]>().read_volatile() };
    assert_eq!(left, [0; 32]);
}

#[test]
fn secrets_are_equal_where_every_byte_is() {
    let secret = SharedSecret::new([7; 32]);
    assert!(secret == secret.clone());
    for bit in 0..256 {
        let mut other = secret.clone();
        other.expose_mut()[bit / 8] ^= 1 << (bit % 8);
        assert!(secret != other, "bit {bit}");
    }
}

#[test]
fn a_zeroed_secret_is_filled_in_place() {
    let mut secret = Secret::<4>::zeroed();
    assert_eq!(*secret.expose(), [0; 4]);
    *secret.expose_mut() = [1, 2, 3, 4];
    assert!(secret == Secret::new([1, 2, 3, 4]));
}

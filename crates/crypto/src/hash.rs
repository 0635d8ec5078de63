//! Hashing: the trait, and its one real backend.

use crate::Secret;
use blake2::{
    Blake2s256, Blake2sMac, Digest,
    digest::{FixedOutput, KeyInit, Update, consts::U16},
};
use zeroize::Zeroizing;

/// BLAKE2s (RFC 7693) in the forms that WireGuard uses.
///
/// Each function takes its input in parts and treats them as one string.
pub trait Hash: Send + Sync {
    /// BLAKE2s-256 (whitepaper §5.4, `Hash`).
    fn hash(&self, parts: &[&[u8]]) -> [u8; 32];

    /// BLAKE2s keyed by its own parameter block, with 16 bytes of output
    /// (whitepaper §5.4, `Mac`). Compare the result in constant time.
    ///
    /// # Panics
    ///
    /// If `key` is empty or longer than 32 bytes, for which the function does
    /// not exist (RFC 7693 §2.1). WireGuard's keys have 16 or 32.
    fn mac(&self, key: &[u8], parts: &[&[u8]]) -> [u8; 16];

    /// HMAC-BLAKE2s-256 (RFC 2104; whitepaper §5.4, `Hmac`), from which the
    /// `Kdf` functions are made. A key of any length is allowed.
    fn hmac(&self, key: &[u8], parts: &[&[u8]]) -> Secret<32>;

    /// Fills `outputs`, at most 255 of them, by HMAC in the extract-and-expand form of HKDF
    /// (RFC 5869; whitepaper §5.4, `Kdf`).
    fn kdf(&self, key: &[u8; 32], input: &[u8], outputs: &mut [Secret<32>]) {
        let extracted = self.hmac(key, &[input]);
        expand(outputs, |parts| self.hmac(extracted.expose(), parts));
    }
}

/// Computes the outputs of [`Hash::kdf`]. Each output is the HMAC of the previous output and its
/// own number.
pub(crate) fn expand(outputs: &mut [Secret<32>], hmac: impl Fn(&[&[u8]]) -> Secret<32>) {
    let mut previous: Option<&Secret<32>> = None;
    for (number, output) in (1_u8..).zip(outputs) {
        let before = previous.map_or(&[][..], |key| key.expose());
        *output = hmac(&[before, &[number]]);
        previous = Some(output);
    }
}

/// BLAKE2s by the `blake2` crate, whose states are zeroised on drop.
pub(crate) struct Blake2s;

impl Hash for Blake2s {
    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut state = Blake2s256::new();
        for part in parts {
            Digest::update(&mut state, part);
        }
        state.finalize().into()
    }

    fn mac(&self, key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
        assert_mac_key(key);
        let mut state = Blake2sMac::<U16>::new_from_slice(key).expect("the length was checked");
        for part in parts {
            Update::update(&mut state, part);
        }
        state.finalize_fixed().into()
    }

    // By hand, because hmac's variant for hashes that buffer lazily, as
    // BLAKE2 does, leaves the padded key on the stack.
    fn hmac(&self, key: &[u8], parts: &[&[u8]]) -> Secret<32> {
        let mut pad = Zeroizing::new([0_u8; BLOCK_LEN]);
        if let Some(start) = pad.get_mut(..key.len()) {
            start.copy_from_slice(key);
        } else {
            let mut state = Blake2s256::new();
            Digest::update(&mut state, key);
            let mut digest = Secret::zeroed();
            finish(state, &mut digest);
            pad[..32].copy_from_slice(digest.expose());
        }

        for byte in pad.iter_mut() {
            *byte ^= 0x36;
        }
        let mut inner = Blake2s256::new_with_prefix(&pad[..]);
        for part in parts {
            Digest::update(&mut inner, part);
        }
        let mut output = Secret::zeroed();
        finish(inner, &mut output);

        for byte in pad.iter_mut() {
            *byte ^= 0x36 ^ 0x5c;
        }
        let mut outer = Blake2s256::new_with_prefix(&pad[..]);
        Digest::update(&mut outer, output.expose());
        finish(outer, &mut output);
        output
    }
}

/// Writes the digest where it belongs, so that no copy is left elsewhere.
fn finish(state: Blake2s256, output: &mut Secret<32>) {
    FixedOutput::finalize_into(state, output.expose_mut().into());
}

/// Length of a BLAKE2s block in bytes.
pub(crate) const BLOCK_LEN: usize = 64;

/// See the panics of [`Hash::mac`].
pub(crate) fn assert_mac_key(key: &[u8]) {
    assert!(
        (1..=32).contains(&key.len()),
        "keyed BLAKE2s takes a key of 1 to 32 bytes, not {}",
        key.len()
    );
}

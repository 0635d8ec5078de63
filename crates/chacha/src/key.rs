//! The inputs of ChaCha20 (RFC 8439 §2.3) as words.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// "expand 32-byte k".
pub(crate) const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The key as little-endian words (RFC 8439 §2.3).
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Words(pub(crate) [u32; 8]);

impl Words {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let mut words = Self([0; 8]);
        for (word, bytes) in words.0.iter_mut().zip(key.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        words
    }
}

/// Four zero bytes and the counter, as little-endian words.
pub(crate) fn nonce(counter: u64) -> [u32; 3] {
    [0, counter as u32, (counter >> 32) as u32]
}

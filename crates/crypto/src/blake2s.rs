//! BLAKE2s (RFC 7693) with AVX-512.
//!
//! The four rows of the working vector are vectors of four words, so that a step mixes all columns,
//! or all diagonals, at once. AVX-512 VL rotates words in one instruction, and fetches the words of
//! a message in any order.
//!
//! Two independent blocks take little more time than one, so the two padded keys of an HMAC are
//! compressed side by side. All HMACs with one key start from the two states that result.
//!
//! States are zeroised on drop. Registers, and values that the compiler spills to the
//! stack, are not cleared. Miri does not know these instructions.
#![allow(
    unsafe_code,
    reason = "vector instructions: loads, stores, and calls after detection"
)]

use core::arch::x86_64::{
    __m128i, __m256i, _mm_add_epi32, _mm_loadu_si128, _mm_ror_epi32, _mm_setr_epi32,
    _mm_shuffle_epi32, _mm_storeu_si128, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_permutex2var_epi32,
};

use zeroize::{ZeroizeOnDrop, Zeroizing};

use crate::Secret;
use crate::hash::{BLOCK_LEN, Hash, assert_mac_key, expand};

/// Length of a digest in bytes.
const DIGEST_LEN: usize = 32;

/// Length of a MAC in bytes.
const MAC_LEN: usize = 16;

/// RFC 7693 §2.6.
const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Rounds of the compression function.
const ROUNDS: usize = 10;

/// RFC 7693 §2.7.
const SIGMA: [[u8; 16]; ROUNDS] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// Order of the message's words in each round: eight for the columns, eight for the diagonals.
/// The first four of each eight are added in the first half of a step. To form diagonals, all rows
/// but the second one are rotated, because the second row is the last to be computed in a step. So
/// the fourth diagonal comes first.
const ORDER: [[[u32; 8]; 2]; ROUNDS] = {
    const PLACES: [[usize; 8]; 2] = [[0, 2, 4, 6, 1, 3, 5, 7], [14, 8, 10, 12, 15, 9, 11, 13]];
    let mut order = [[[0; 8]; 2]; ROUNDS];
    let mut i = 0;
    while i < ROUNDS * 16 {
        let (round, step, word) = (i / 16, i / 8 % 2, i % 8);
        order[round][step][word] = SIGMA[round][PLACES[step][word]] as u32;
        i += 1;
    }
    order
};

/// BLAKE2s with the instructions of this processor.
#[derive(Clone, Copy)]
pub(crate) struct VectorBlake2s(());

impl VectorBlake2s {
    /// Returns `None` on a processor without the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        has_all.then_some(Self(()))
    }

    fn compress<const N: usize>(self, blocks: [Block<'_>; N]) {
        // SAFETY: there is no value of this type without the instructions.
        unsafe { compress(blocks) }
    }

    /// Compresses the padded keys of an HMAC. If the message is empty, the padded key is the last
    /// block of the inner hash.
    fn key(self, key: &[u8], is_message_empty: bool) -> HmacKey {
        let mut pads = Zeroizing::new([[0_u8; BLOCK_LEN]; 2]);
        let [inner_pad, outer_pad] = &mut *pads;
        if let Some(start) = inner_pad.get_mut(..key.len()) {
            start.copy_from_slice(key);
        } else {
            let digest = Hasher::new(self, Chain::new(0, DIGEST_LEN)).digest(&[key]);
            inner_pad[..DIGEST_LEN].copy_from_slice(digest.expose());
        }
        for (inner, outer) in inner_pad.iter_mut().zip(outer_pad) {
            *outer = *inner ^ 0x5c;
            *inner ^= 0x36;
        }
        let [inner, outer] = [(); 2].map(|()| Chain::new(0, DIGEST_LEN));
        let mut key = HmacKey { inner, outer };
        let [inner_pad, outer_pad] = &*pads;
        self.compress([
            Block {
                chain: &mut key.inner,
                bytes: inner_pad,
                length: BLOCK_LEN as u64,
                is_last: is_message_empty,
            },
            Block {
                chain: &mut key.outer,
                bytes: outer_pad,
                length: BLOCK_LEN as u64,
                is_last: false,
            },
        ]);
        key
    }
}

impl Hash for VectorBlake2s {
    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        *Hasher::new(*self, Chain::new(0, DIGEST_LEN))
            .digest(parts)
            .expose()
    }

    fn mac(&self, key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
        assert_mac_key(key);
        let mut hasher = Hasher::new(*self, Chain::new(key.len(), MAC_LEN));
        hasher.update_padded(key);
        let digest = hasher.digest(parts);
        let mut mac = [0; MAC_LEN];
        mac.copy_from_slice(&digest.expose()[..MAC_LEN]);
        mac
    }

    fn hmac(&self, key: &[u8], parts: &[&[u8]]) -> Secret<32> {
        if parts.iter().all(|part| part.is_empty()) {
            let HmacKey { inner, outer } = self.key(key, true);
            return Hasher::after_a_block(*self, outer).digest(&[inner.digest().expose()]);
        }
        self.key(key, false).hmac(*self, parts)
    }

    fn kdf(&self, key: &[u8; 32], input: &[u8], outputs: &mut [Secret<32>]) {
        let extracted = self.hmac(key, &[input]);
        let key = self.key(extracted.expose(), false);
        expand(outputs, |parts| key.hmac(*self, parts));
    }
}

/// An HMAC key: the chain values after the padded keys.
struct HmacKey {
    inner: Chain,
    outer: Chain,
}

impl HmacKey {
    /// Computes the HMAC of a message that is not empty.
    fn hmac(&self, vectors: VectorBlake2s, parts: &[&[u8]]) -> Secret<32> {
        let inner = Hasher::after_a_block(vectors, self.inner.clone()).digest(parts);
        Hasher::after_a_block(vectors, self.outer.clone()).digest(&[inner.expose()])
    }
}

/// A hash of a message that comes in parts.
#[derive(ZeroizeOnDrop)]
struct Hasher {
    #[zeroize(skip)]
    vectors: VectorBlake2s,
    chain: Chain,
    /// Bytes of the message so far.
    length: u64,
    /// The last bytes of the message so far. They are compressed when more bytes follow.
    buffer: [u8; BLOCK_LEN],
    filled: usize,
}

impl Hasher {
    fn new(vectors: VectorBlake2s, chain: Chain) -> Self {
        Self {
            vectors,
            chain,
            length: 0,
            buffer: [0; BLOCK_LEN],
            filled: 0,
        }
    }

    fn after_a_block(vectors: VectorBlake2s, chain: Chain) -> Self {
        let mut hasher = Self::new(vectors, chain);
        hasher.length = BLOCK_LEN as u64;
        hasher
    }

    /// Appends a key as a block of its own, with zeros after it.
    fn update_padded(&mut self, key: &[u8]) {
        self.buffer[..key.len()].copy_from_slice(key);
        self.length = BLOCK_LEN as u64;
        self.filled = BLOCK_LEN;
    }

    fn update(&mut self, mut part: &[u8]) {
        self.length += part.len() as u64;
        while !part.is_empty() {
            if self.filled == BLOCK_LEN {
                self.vectors.compress([Block {
                    chain: &mut self.chain,
                    bytes: &self.buffer,
                    length: self.length - part.len() as u64,
                    is_last: false,
                }]);
                self.filled = 0;
            }
            while self.filled == 0
                && let Some((bytes, rest)) = part.split_first_chunk()
                && !rest.is_empty()
            {
                self.vectors.compress([Block {
                    chain: &mut self.chain,
                    bytes,
                    length: self.length - rest.len() as u64,
                    is_last: false,
                }]);
                part = rest;
            }
            let (now, rest) = part.split_at(part.len().min(BLOCK_LEN - self.filled));
            self.buffer[self.filled..][..now.len()].copy_from_slice(now);
            self.filled += now.len();
            part = rest;
        }
    }

    /// Appends the last parts and returns the digest.
    fn digest(mut self, parts: &[&[u8]]) -> Secret<32> {
        for part in parts {
            self.update(part);
        }
        self.buffer[self.filled..].fill(0);
        self.vectors.compress([Block {
            chain: &mut self.chain,
            bytes: &self.buffer,
            length: self.length,
            is_last: true,
        }]);
        self.chain.digest()
    }
}

/// A chain value of the compression function.
#[derive(Clone, ZeroizeOnDrop)]
struct Chain([u32; 8]);

impl Chain {
    /// Returns the first chain value, with the parameter block of RFC 7693 §2.5. Lengths are in
    /// bytes.
    fn new(key_len: usize, digest_len: usize) -> Self {
        let mut words = IV;
        words[0] ^= 0x0101_0000 ^ (key_len as u32) << 8 ^ digest_len as u32;
        Self(words)
    }

    fn digest(&self) -> Secret<32> {
        let mut digest = Secret::zeroed();
        for (bytes, word) in digest.expose_mut().chunks_exact_mut(4).zip(self.0) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

/// A block to compress.
struct Block<'a> {
    chain: &'a mut Chain,
    bytes: &'a [u8; BLOCK_LEN],
    /// Bytes of the message up to the end of this block, without padding.
    length: u64,
    is_last: bool,
}

#[target_feature(enable = "avx512f,avx512vl")]
fn compress<const N: usize>(blocks: [Block<'_>; N]) {
    let iv = load(&IV);
    let words = blocks.each_ref().map(|block| load_block(block.bytes));
    let mut rows: [[__m128i; 4]; N] = core::array::from_fn(|i| {
        let Block {
            chain,
            length,
            is_last,
            ..
        } = &blocks[i];
        let [low, high] = [*length as i32, (*length >> 32) as i32];
        let counter = _mm_setr_epi32(low, high, -i32::from(*is_last), 0);
        let [a, b] = load(&chain.0);
        [a, b, iv[0], _mm_xor_si128(iv[1], counter)]
    });
    for [columns, diagonals] in &ORDER {
        for i in 0..N {
            mix(&mut rows[i], &words[i], columns);
        }
        for row in &mut rows {
            row[0] = _mm_shuffle_epi32::<0b10_01_00_11>(row[0]);
            row[2] = _mm_shuffle_epi32::<0b00_11_10_01>(row[2]);
            row[3] = _mm_shuffle_epi32::<0b01_00_11_10>(row[3]);
        }
        for i in 0..N {
            mix(&mut rows[i], &words[i], diagonals);
        }
        for row in &mut rows {
            row[0] = _mm_shuffle_epi32::<0b00_11_10_01>(row[0]);
            row[2] = _mm_shuffle_epi32::<0b10_01_00_11>(row[2]);
            row[3] = _mm_shuffle_epi32::<0b01_00_11_10>(row[3]);
        }
    }
    for (block, [a, b, c, d]) in blocks.into_iter().zip(rows) {
        let [first, second] = load(&block.chain.0);
        let first = _mm_xor_si128(first, _mm_xor_si128(a, c));
        let second = _mm_xor_si128(second, _mm_xor_si128(b, d));
        store(&mut block.chain.0, [first, second]);
    }
}

/// The function G of RFC 7693 §3.1, of four columns.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn mix([a, b, c, d]: &mut [__m128i; 4], message: &[__m256i; 2], order: &[u32; 8]) {
    let words = _mm256_permutex2var_epi32(message[0], load_order(order), message[1]);
    *a = _mm_add_epi32(_mm_add_epi32(*a, _mm256_castsi256_si128(words)), *b);
    *d = _mm_ror_epi32::<16>(_mm_xor_si128(*d, *a));
    *c = _mm_add_epi32(*c, *d);
    *b = _mm_ror_epi32::<12>(_mm_xor_si128(*b, *c));
    *a = _mm_add_epi32(_mm_add_epi32(*a, _mm256_extracti128_si256::<1>(words)), *b);
    *d = _mm_ror_epi32::<8>(_mm_xor_si128(*d, *a));
    *c = _mm_add_epi32(*c, *d);
    *b = _mm_ror_epi32::<7>(_mm_xor_si128(*b, *c));
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn load(words: &[u32; 8]) -> [__m128i; 2] {
    // SAFETY: 32 bytes may be read, and the loads ask for no alignment.
    unsafe {
        let first = words.as_ptr().cast::<__m128i>();
        [_mm_loadu_si128(first), _mm_loadu_si128(first.add(1))]
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn store(words: &mut [u32; 8], rows: [__m128i; 2]) {
    // SAFETY: 32 bytes may be written, and the stores ask for no alignment.
    unsafe {
        let first = words.as_mut_ptr().cast::<__m128i>();
        _mm_storeu_si128(first, rows[0]);
        _mm_storeu_si128(first.add(1), rows[1]);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn load_block(bytes: &[u8; BLOCK_LEN]) -> [__m256i; 2] {
    // SAFETY: 64 bytes may be read, and the loads ask for no alignment.
    unsafe {
        let first = bytes.as_ptr().cast::<__m256i>();
        [_mm256_loadu_si256(first), _mm256_loadu_si256(first.add(1))]
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn load_order(order: &[u32; 8]) -> __m256i {
    // SAFETY: 32 bytes may be read, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(order.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Blake2s;

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + seed * 7) as u8).collect()
    }

    /// `None` if the processor has no vectors for it.
    fn detected() -> Option<VectorBlake2s> {
        let vectors = VectorBlake2s::detect();
        if vectors.is_none() {
            println!("no AVX-512 here: not tested");
        }
        vectors
    }

    #[test]
    fn every_length_hashes_as_with_the_other_backend() {
        let Some(vectors) = detected() else {
            return;
        };
        for len in 0..=400 {
            let message = bytes(len, len);
            assert_eq!(
                vectors.hash(&[&message]),
                Blake2s.hash(&[&message]),
                "{len}"
            );
            let key = bytes(1 + len % 32, 1);
            let mac = Blake2s.mac(&key, &[&message]);
            assert_eq!(vectors.mac(&key, &[&message]), mac, "{len}");
            for key_len in [0, 1, 32, 63, 64, 65, 200] {
                let key = bytes(key_len, 2);
                let hmac = Blake2s.hmac(&key, &[&message]);
                assert!(vectors.hmac(&key, &[&message]) == hmac, "{key_len}, {len}");
            }
        }
    }

    #[test]
    fn a_message_may_come_in_any_parts() {
        let Some(vectors) = detected() else {
            return;
        };
        let message = bytes(260, 3);
        let digest = vectors.hash(&[&message]);
        for first in 0..=message.len() {
            for second in [0, 1, 63, 64, 65, 128] {
                let (head, rest) = message.split_at(first);
                let (middle, tail) = rest.split_at(second.min(rest.len()));
                let parts = [head, &[], middle, tail];
                assert_eq!(vectors.hash(&parts), digest, "{first}, {second}");
            }
        }
    }

    #[test]
    fn outputs_are_those_of_the_other_backend() {
        let Some(vectors) = detected() else {
            return;
        };
        for input_len in [0, 1, 32, 64, 100] {
            let (key, input) = ([9; 32], bytes(input_len, 4));
            for count in 0..=5 {
                let [mut ours, mut theirs] = [(); 2].map(|()| vec![Secret::zeroed(); count]);
                vectors.kdf(&key, &input, &mut ours);
                Blake2s.kdf(&key, &input, &mut theirs);
                assert!(ours == theirs, "{input_len}, {count}");
            }
        }
    }
}

//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
#[expect(unsafe_code, reason = "vector instructions")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector instructions")]
mod x86_64;

/// A sum of 16-bit big-endian words in one's complement arithmetic.
///
/// The accumulator does not fold carries until the end, which is correct for up to 2^48 words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no words.
    pub const ZERO: Self = Self(0);

    /// Adds bytes that start at an even offset of the checksummed data. An odd length is padded
    /// with a zero byte, so only the last call may have an odd length.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        Self(self.0 + u64::from(u16::from_be(fold(native_sum(bytes)))))
    }

    /// Adds one word.
    #[must_use]
    pub fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// Subtracts one word.
    #[must_use]
    pub fn without(self, word: u16) -> Self {
        self.word(!word)
    }

    /// Adds the pseudo header of TCP and UDP (RFC 9293 section 3.1, RFC 8200 section 8.1).
    /// `addresses` are source and destination as in the IP header, `length` is the bytes of
    /// transport header and payload.
    #[must_use]
    pub fn pseudo_header(self, addresses: &[u8], protocol: u8, length: u16) -> Self {
        self.bytes(addresses).word(u16::from(protocol)).word(length)
    }

    /// Returns the sum: `0xffff` if it includes a correct checksum.
    pub fn folded(self) -> u16 {
        fold(self.0)
    }

    /// Returns the checksum to store.
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// Returns the checksum to store in UDP, where zero means "no checksum".
    pub fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// Returns `checksum` updated for one word that changed from `old` to `new` (RFC 1624, equation 3).
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.word(!checksum).word(!old).word(new).checksum()
}

/// Sums 32-bit words in native byte order. On little-endian machines the result is the byte-swapped
/// sum (RFC 1071 section 2, B).
#[inline]
fn native_sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(sum) = x86_64::sum(bytes) {
        return sum;
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    return aarch64::sum(bytes);
    #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
    portable_sum(bytes)
}

/// [`native_sum`] for every processor. Independent lanes let the compiler use the baseline vector
/// registers.
fn portable_sum(bytes: &[u8]) -> u64 {
    const LANES: usize = 16;
    let mut lanes = [0u64; LANES];
    let (blocks, rest) = bytes.as_chunks::<{ LANES * 4 }>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut sum = lanes.iter().sum::<u64>();
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let mut tail = [0; 4];
    tail[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(tail))
}

/// Folds the carries: to at most 33 bits, then 32, 17 and 16.
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The sum of RFC 1071 section 4.1, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            if sum > 0xffff {
                sum = (sum & 0xffff) + 1;
            }
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::ZERO.bytes(&bytes).folded(), 0xddf2);
    }

    fn ways() -> Vec<fn(&[u8]) -> u64> {
        let always: [fn(&[u8]) -> u64; 2] = [native_sum, portable_sum];
        #[cfg(target_arch = "x86_64")]
        return [&always[..], &x86_64::tests::ways()].concat();
        #[cfg(not(target_arch = "x86_64"))]
        always.to_vec()
    }

    /// Uses lengths beyond link MTUs, and surrounds the data with bytes that must not count.
    #[test]
    fn every_way_sums_every_length_at_every_alignment() {
        let mut noise = 1u32;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Most bits are ones, to cause carries.
            (noise >> 24) as u8 | (noise >> 16) as u8
        })
        .take(64 + 2048)
        .collect();
        let ways = ways();
        for start in (0..16).chain([31, 33, 63]) {
            // The expected sum is updated by one byte for each length.
            let mut expected = 0u32;
            for len in 0..=2048 {
                let part = &bytes[start..start + len];
                for (index, way) in ways.iter().enumerate() {
                    let found = u16::from_be(fold(way(part)));
                    assert_eq!(
                        u32::from(found),
                        expected,
                        "way {index}, {len} bytes at {start}"
                    );
                }
                let next = u32::from(bytes[(start + len).min(bytes.len() - 1)]);
                expected += if len % 2 == 0 { next << 8 } else { next };
                expected = (expected & 0xffff) + (expected >> 16);
            }
        }
    }

    #[test]
    fn sixty_four_kilobytes_of_ones_do_not_overflow() {
        let bytes = vec![0xff; 65_535];
        for way in ways() {
            assert_eq!(u16::from_be(fold(way(&bytes))), naive(&bytes));
        }
    }

    #[test]
    fn folding_absorbs_every_carry() {
        for sum in [0, 1, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_ffff_fffe, u64::MAX] {
            // One's complement addition is addition modulo 0xffff, except that only a sum of zeros
            // is 0.
            let expected = match (sum, sum % 0xffff) {
                (0, _) => 0,
                (_, 0) => 0xffff,
                (_, rest) => rest,
            };
            assert_eq!(u64::from(fold(sum)), expected, "{sum:#x}");
        }
    }

    #[test]
    fn udp_never_stores_zero() {
        assert_eq!(Sum::ZERO.word(0xffff).checksum(), 0);
        assert_eq!(Sum::ZERO.word(0xffff).udp_checksum(), 0xffff);
        assert_eq!(Sum::ZERO.word(1).udp_checksum(), 0xfffe);
    }

    proptest! {
        #[test]
        fn any_bytes_as_the_naive_sum(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(Sum::ZERO.bytes(&bytes).folded(), naive(&bytes));
        }

        #[test]
        fn parts_as_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..150) {
            let cut = (cut * 2).min(bytes.len() & !1);
            let parts = Sum::ZERO.bytes(&bytes[..cut]).bytes(&bytes[cut..]);
            prop_assert_eq!(parts.folded(), naive(&bytes));
        }

        #[test]
        fn updating_as_computing_anew(
            mut bytes in prop::collection::vec(any::<u8>(), 2..100), at in 0usize..49, new: u16,
        ) {
            let at = at % (bytes.len() / 2) * 2;
            let before = Sum::ZERO.bytes(&bytes).checksum();
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            // Only the sum zero has two representations.
            prop_assume!(bytes.iter().any(|&byte| byte != 0));
            prop_assert_eq!(update(before, old, new), Sum::ZERO.bytes(&bytes).checksum());
        }

        #[test]
        fn taking_away_what_was_added(bytes in prop::collection::vec(any::<u8>(), 1..100), word: u16) {
            prop_assume!(bytes.iter().any(|&byte| byte != 0));
            let sum = Sum::ZERO.bytes(&bytes);
            prop_assert_eq!(sum.word(word).without(word).folded(), sum.folded());
        }
    }
}

//! Random numbers from a seed: xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64.
//! Small, fast, and equal on every machine.

/// A generator. Equal seeds give equal sequences.
#[derive(Clone)]
pub struct Random([u64; 4]);

impl Random {
    /// Creates a generator for one purpose: equal `seed` and `stream` give equal numbers; different
    /// streams of one seed are independent.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut state = seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
        Self(core::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= t;
        *d = d.rotate_left(45);
        result
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an index into a collection of `len` items.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a number from `low` to below `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low))
    }

    /// Returns a number from `low` to `high` with about equal probability for each doubling.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let low = low.max(1);
        let doublings = (high / low).max(1).ilog2() + 1;
        let base = low << self.below(doublings.into());
        (base + self.below(base)).min(high)
    }

    /// Returns `true` once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns `true` in `permille` of 1,000 cases.
    pub fn permille(&mut self, permille: u16) -> bool {
        permille > 0 && self.below(1000) < u64::from(permille)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.number().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Returns `N` random bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }
}

impl taupe_protocol::Random for Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        Self::fill(self, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let draw = |seed, stream| Random::new(seed, stream).bytes::<32>();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let mut random = Random::new(7, 0);
        for _ in 0..10_000 {
            assert!(random.below(3) < 3);
            assert!((5..9).contains(&random.between(5, 9)));
            assert!((10..=1000).contains(&random.spread(10, 1000)));
        }
        assert_eq!(random.below(0), 0);
    }
}

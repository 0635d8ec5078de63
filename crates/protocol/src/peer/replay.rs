//! Replay window (whitepaper §5.4.6, RFC 6479): the counters of a session that have been
//! received.

/// Bits in the window (kernel).
pub const WINDOW_BITS: u64 = 8192;
/// Maximum distance below the greatest counter at which a packet is accepted: the window without
/// the one word that is being reused (RFC 6479 §2.2).
#[cfg(any(test, feature = "testing"))]
pub const WINDOW_LEN: u64 = ReplayWindow::LEN;

const WORD_BITS: u64 = 64;
const WORDS: usize = (WINDOW_BITS / WORD_BITS) as usize;

/// Replay window of one session. It allocates its 1 KiB when the first packet arrives, so that
/// sessions that never receive stay small.
pub type ReplayWindow = Window<WORDS, WORD_BITS>;

/// A replay window of any size: `WORDS` words, of each of which `WORD_BITS` bits are used, 64 at most.
pub struct Window<const WORDS: usize, const WORD_BITS: u64> {
    /// One above the greatest counter received.
    next: u64,
    bits: Option<Box<[u64; WORDS]>>,
}

impl<const WORDS: usize, const WORD_BITS: u64> Default for Window<WORDS, WORD_BITS> {
    fn default() -> Self {
        Self {
            next: 0,
            bits: None,
        }
    }
}

impl<const WORDS: usize, const WORD_BITS: u64> Window<WORDS, WORD_BITS> {
    /// Maximum distance below the greatest counter at which a packet is accepted.
    pub const LEN: u64 = (WORDS as u64 - 1) * WORD_BITS;

    /// Records `counter`. Returns `false` if it was received before or is below the window. Call
    /// this only for authenticated packets: a forged counter would move the window.
    pub fn accept(&mut self, counter: u64) -> bool {
        let bits = self.bits.get_or_insert_with(|| Box::new([0; WORDS]));
        if self.next.saturating_sub(1).saturating_sub(counter) > Self::LEN {
            return false;
        }
        if counter >= self.next {
            let from = self.next.div_ceil(WORD_BITS);
            let to = counter / WORD_BITS;
            // Clear the words that the window moves into: they hold counters of its previous
            // turn.
            for word in from..=to.min(from.saturating_add(WORDS as u64 - 1)) {
                bits[word as usize % WORDS] = 0;
            }
            self.next = counter.saturating_add(1);
        }
        let word = &mut bits[(counter / WORD_BITS) as usize % WORDS];
        let bit = 1 << (counter % WORD_BITS);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Returns the greatest counter received plus one.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the allocated bytes.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.bits.as_ref().map_or(0, |bits| size_of_val(&**bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation: a set of all counters received. `LEN` is the length of the window.
    #[derive(Default)]
    struct Oracle<const LEN: u64> {
        seen: std::collections::BTreeSet<u64>,
        next: u64,
    }

    impl<const LEN: u64> Oracle<LEN> {
        fn accept(&mut self, counter: u64) -> bool {
            let late = self.next > counter && self.next - 1 - counter > LEN;
            if late || !self.seen.insert(counter) {
                return false;
            }
            self.next = self.next.max(counter.saturating_add(1));
            true
        }
    }

    #[test]
    fn agrees_with_a_set_of_all_counters() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 20) % below
        };
        let mut window = ReplayWindow::default();
        let mut oracle = Oracle::<WINDOW_LEN>::default();
        let mut refused = 0;
        for _ in 0..200_000 {
            let counter = match random(400) {
                0 => oracle.next + random(3 * WINDOW_BITS),
                1..20 => oracle.next.saturating_sub(WINDOW_LEN - 1 + random(5)),
                20..200 => oracle.next,
                _ => (oracle.next + 40).saturating_sub(random(WINDOW_BITS + 80)),
            };
            let expected = oracle.accept(counter);
            refused += u32::from(!expected);
            assert_eq!(window.accept(counter), expected, "counter {counter}");
        }
        assert!(refused > 10_000);
    }

    /// A window of two words with four bits, and all counters below 16, in every order and number of
    /// times. States that were reached before lead to nothing new.
    #[test]
    fn agrees_with_a_set_for_every_sequence_in_a_small_scope() {
        type Small = Window<2, 4>;
        const COUNTERS: u64 = 16;
        assert_eq!(Small::LEN, 4);
        let mut reached = std::collections::HashSet::new();
        // Each state has a window, and the set of the counters received, one bit for each.
        let mut left = vec![(0, None::<Box<[u64; 2]>>, 0_u32)];
        let (mut accepted, mut refused) = (0_u32, 0_u32);
        while let Some((next, bits, seen)) = left.pop() {
            for counter in 0..COUNTERS {
                let greatest = u64::from(seen.checked_ilog2().unwrap_or(0));
                let is_late = counter + Small::LEN < greatest;
                let expected = !is_late && seen & 1 << counter == 0;
                let bits = bits.clone();
                let mut window = Small { next, bits };
                assert_eq!(window.accept(counter), expected, "{counter} after {seen:b}");
                match expected {
                    true => accepted += 1,
                    false => refused += 1,
                }
                let seen = seen | u32::from(expected) << counter;
                if reached.insert((window.next, window.bits.as_deref().copied(), seen)) {
                    left.push((window.next, window.bits, seen));
                }
            }
        }
        assert!(
            accepted > 10_000 && refused > 10_000,
            "{accepted} {refused}"
        );
    }

    #[test]
    fn edge_of_the_window() {
        let mut window = ReplayWindow::default();
        assert!(window.accept(WINDOW_LEN + 1));
        assert!(!window.accept(0), "one below the edge");
        assert!(window.accept(1), "the edge");
        assert!(window.accept(2), "one above the edge");
        assert!(!window.accept(1));
    }

    #[test]
    fn a_jump_over_the_whole_window_forgets_it() {
        let mut window = ReplayWindow::default();
        for counter in 0..WINDOW_BITS {
            assert!(window.accept(counter));
        }
        let far = 1 << 40;
        assert!(window.accept(far));
        for late in 1..=WINDOW_LEN {
            assert!(window.accept(far - late), "{late}");
        }
        assert!(!window.accept(far - WINDOW_LEN - 1));
    }

    #[test]
    fn greatest_counters() {
        let mut window = ReplayWindow::default();
        assert!(window.accept(u64::MAX - 1));
        assert!(!window.accept(u64::MAX - 1));
        assert!(window.accept(u64::MAX - 2));
    }

    #[test]
    fn allocates_only_when_something_is_received() {
        let mut window = ReplayWindow::default();
        assert_eq!(window.allocated(), 0);
        window.accept(0);
        assert_eq!(window.allocated(), 1024);
    }
}

//! Replay window (whitepaper §5.4.6, RFC 6479): the counters of a session that have been
//! received.

/// Bits in the window (kernel).
pub const WINDOW_BITS: u64 = 8192;
/// Maximum distance below the greatest counter at which a packet is accepted: the window without
/// the one word that is being reused (RFC 6479 §2.2).
pub const WINDOW_LEN: u64 = WINDOW_BITS - WORD_BITS;

const WORD_BITS: u64 = 64;
const WORDS: usize = (WINDOW_BITS / WORD_BITS) as usize;

/// Replay window of one session. It allocates its 1 KiB when the first packet arrives, so that
/// sessions that never receive stay small.
#[derive(Default)]
pub struct ReplayWindow {
    /// One above the greatest counter received.
    next: u64,
    bits: Option<Box<[u64; WORDS]>>,
}

impl ReplayWindow {
    /// Records `counter`. Returns `false` if it was received before or is below the window. Call
    /// this only for authenticated packets: a forged counter would move the window.
    pub fn accept(&mut self, counter: u64) -> bool {
        let bits = self.bits.get_or_insert_with(|| Box::new([0; WORDS]));
        if self.next.saturating_sub(1).saturating_sub(counter) > WINDOW_LEN {
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

    /// Reference implementation: a set of all counters received.
    #[derive(Default)]
    struct Oracle {
        seen: std::collections::HashSet<u64>,
        next: u64,
    }

    impl Oracle {
        fn accept(&mut self, counter: u64) -> bool {
            let late = self.next > counter && self.next - 1 - counter > WINDOW_LEN;
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
        let (mut window, mut oracle) = (ReplayWindow::default(), Oracle::default());
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

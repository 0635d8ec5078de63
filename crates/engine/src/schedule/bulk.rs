//! The scheduling class of threads that carry bulk.
//!
//! On a busy machine, a thread that wakes up for a packet takes the processor from the program that
//! is making the next one. Both then pay for two context switches a packet, and their data leaves
//! the cache. A thread that carries bulk asks the scheduler for `SCHED_BATCH`: it waits for the end
//! of the other's time slice (about a millisecond), and finds more to carry at once. Under that load
//! packets wait in queues for longer than that anyway. A thread that carries little keeps its class.

use taupe_os_linux::schedule::{Class, change_class};

use crate::schedule::load::Load;

/// Bytes in 10 ms from which on a thread carries bulk: 1.6 Gbit/s.
pub(crate) const BEGINS: u64 = 2_000_000;

/// Bytes in 10 ms below which it does so no more: 0.8 Gbit/s.
pub(crate) const ENDS: u64 = 1_000_000;

/// The scheduling class of one thread.
#[derive(Default)]
pub(crate) struct Bulk {
    is_bulk: bool,
    /// Its class was changed when it began to carry bulk.
    changed: bool,
}

impl Bulk {
    /// Asks the system for the class that fits the load, for the calling thread. A refusal changes
    /// nothing but speed. A thread to which somebody has given another class keeps it.
    pub(crate) fn follow(&mut self, load: Load) {
        match self.class(load) {
            Some(Class::Batch) => {
                self.changed = change_class(Class::Normal, Class::Batch).unwrap_or(false);
            }
            Some(Class::Normal) if self.changed => {
                let _ = change_class(Class::Batch, Class::Normal);
            }
            Some(Class::Normal) | None => {}
        }
    }

    /// Returns the class that fits from now on, if it is another.
    fn class(&mut self, load: Load) -> Option<Class> {
        let is_bulk = load.bytes >= if self.is_bulk { ENDS } else { BEGINS };
        if is_bulk == self.is_bulk {
            return None;
        }
        self.is_bulk = is_bulk;
        Some(if is_bulk { Class::Batch } else { Class::Normal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::load::{Meter, Turn};
    use taupe_protocol::time::Instant;

    /// What a thread with a meter becomes.
    #[derive(Default)]
    struct Measured(Meter, Bulk);

    impl Measured {
        fn carried(&mut self, now: Instant, bytes: usize) -> Option<Class> {
            let Self(meter, bulk) = self;
            let (came, ended) = (now, now);
            let load = meter.note(&Turn { came, ended, bytes }, || std::time::Duration::ZERO)?;
            bulk.class(load)
        }
    }

    /// What is said when `bytes` are carried every millisecond for 30 ms.
    fn at(thread: &mut Measured, start: u64, bytes: usize) -> Vec<Class> {
        let times = (0..30).map(|i| Instant((start + i) * 1_000_000));
        times.filter_map(|now| thread.carried(now, bytes)).collect()
    }

    #[test]
    fn bulk_is_what_carries_much_and_for_as_long() {
        let mut thread = Measured::default();
        assert_eq!(at(&mut thread, 1000, 100), []);
        assert_eq!(at(&mut thread, 1030, 190_000), [], "below 1.6 Gbit/s");
        assert_eq!(at(&mut thread, 1060, 210_000), [Class::Batch]);
        assert_eq!(at(&mut thread, 1090, 110_000), [], "above 0.8 Gbit/s");
        assert_eq!(at(&mut thread, 1120, 90_000), [Class::Normal]);
        assert_eq!(at(&mut thread, 1150, 190_000), []);
    }

    #[test]
    fn one_large_batch_after_a_pause_is_no_bulk() {
        let mut thread = Measured::default();
        for second in 1..10 {
            let now = Instant(second * 1_000_000_000);
            assert_eq!(thread.carried(now, 8 * 65_536 * 4), None);
        }
    }

    #[test]
    fn the_first_packet_after_bulk_ends_it() {
        let mut thread = Measured::default();
        assert_eq!(at(&mut thread, 1000, 500_000), [Class::Batch]);
        let later = Instant(2_000_000_000);
        assert_eq!(thread.carried(later, 100), Some(Class::Normal));
    }
}

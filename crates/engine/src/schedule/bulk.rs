//! The scheduling class of threads with bulk traffic.
//!
//! On a busy machine, a thread that wakes up for a packet preempts the program that is making the
//! next packet. Each packet then costs two context switches and a cold cache. A thread with bulk
//! traffic therefore asks the scheduler for `SCHED_BATCH`: it waits for the end of the program's
//! time slice (about a millisecond) and finds more packets at once. Under such load, packets wait
//! in queues for longer than that anyway. A thread with light traffic stays in the normal class.

use taupe_os_linux::schedule::{Policy, change_policy};

use crate::schedule::load::Load;

/// Bulk traffic begins at this number of bytes in 10 ms: 1.6 Gbit/s.
pub(crate) const BULK_BEGINS: u64 = 2_000_000;

/// Bulk traffic ends below this number of bytes in 10 ms: 0.8 Gbit/s.
pub(crate) const BULK_ENDS: u64 = 1_000_000;

/// The scheduling class of one thread.
pub(crate) struct Bulk {
    /// False if the thread stays in its class.
    is_wanted: bool,
    is_bulk: bool,
    /// Set if the class was changed when bulk traffic began.
    changed: bool,
}

impl Bulk {
    /// Returns the state of a thread in the normal class. If `is_wanted` is false, the thread stays
    /// in it.
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            is_wanted,
            is_bulk: false,
            changed: false,
        }
    }

    /// Sets the class of the calling thread to the one that fits the load. If the system refuses,
    /// only speed suffers. If an administrator has set another class, the thread stays in it.
    pub(crate) fn adapt(&mut self, load: Load) {
        match self.class(load) {
            Some(Policy::Batch) => {
                self.changed = change_policy(Policy::Normal, Policy::Batch).unwrap_or(false);
            }
            Some(Policy::Normal) if self.changed => {
                let _ = change_policy(Policy::Batch, Policy::Normal);
            }
            Some(Policy::Normal) | None => {}
        }
    }

    /// Returns the class that fits the load, if it differs from the last one.
    fn class(&mut self, load: Load) -> Option<Policy> {
        let is_bulk = load.bytes >= if self.is_bulk { BULK_ENDS } else { BULK_BEGINS };
        if is_bulk == self.is_bulk || !self.is_wanted {
            return None;
        }
        self.is_bulk = is_bulk;
        Some(if is_bulk {
            Policy::Batch
        } else {
            Policy::Normal
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::load::{Meter, Turn};
    use taupe_protocol::time::Instant;

    /// The class of a thread, by its measured load.
    struct Measured(Meter, Bulk);

    impl Measured {
        fn new() -> Self {
            Self(Meter::default(), Bulk::new(true))
        }

        fn carried(&mut self, now: Instant, bytes: usize) -> Option<Policy> {
            let Self(meter, bulk) = self;
            let (read_at, ended) = (now, now);
            let load = meter.note(
                &Turn {
                    read_at,
                    ended,
                    bytes,
                },
                || std::time::Duration::ZERO,
            )?;
            bulk.class(load)
        }
    }

    /// Returns the changes of class while `bytes` are carried every millisecond for 30 ms.
    fn at(thread: &mut Measured, start: u64, bytes: usize) -> Vec<Policy> {
        let times = (0..30).map(|i| Instant((start + i) * 1_000_000));
        times.filter_map(|now| thread.carried(now, bytes)).collect()
    }

    #[test]
    fn the_class_follows_the_bytes_with_hysteresis() {
        let mut thread = Measured::new();
        assert_eq!(at(&mut thread, 1000, 100), []);
        assert_eq!(at(&mut thread, 1030, 190_000), [], "below 1.6 Gbit/s");
        assert_eq!(at(&mut thread, 1060, 210_000), [Policy::Batch]);
        assert_eq!(at(&mut thread, 1090, 110_000), [], "above 0.8 Gbit/s");
        assert_eq!(at(&mut thread, 1120, 90_000), [Policy::Normal]);
        assert_eq!(at(&mut thread, 1150, 190_000), []);
    }

    #[test]
    fn a_thread_that_must_not_change_its_class_stays_in_it() {
        let mut thread = Measured(Meter::default(), Bulk::new(false));
        assert_eq!(at(&mut thread, 1000, 500_000), []);
    }

    #[test]
    fn one_large_batch_after_a_pause_is_not_bulk_traffic() {
        let mut thread = Measured::new();
        for second in 1..10 {
            let now = Instant(second * 1_000_000_000);
            assert_eq!(thread.carried(now, 8 * 65_536 * 4), None);
        }
    }

    #[test]
    fn the_first_packet_after_a_pause_ends_bulk_traffic() {
        let mut thread = Measured::new();
        assert_eq!(at(&mut thread, 1000, 500_000), [Policy::Batch]);
        let later = Instant(2_000_000_000);
        assert_eq!(thread.carried(later, 100), Some(Policy::Normal));
    }
}

//! Which threads carry so much that they had better not interrupt others.
//!
//! On a machine that is busy, a thread that wakes up for a packet takes the
//! processor from the program that is just making the next one: both then pay
//! for two switches a packet, and their data leaves the cache. A thread that
//! carries bulk asks the scheduler for `SCHED_BATCH`: it waits for the other's
//! slice to end (about a millisecond), and finds more to carry at once. Under
//! that load packets wait in queues for longer than that anyway. A thread that
//! carries little stays as quick as any.

use std::time::Duration;

use taupe_protocol::time::Instant;
use taupe_sys::schedule::{Class, change_class};

/// How long is looked at.
const WINDOW: Duration = Duration::from_millis(10);

/// Bytes in a window that make a thread one of bulk: 1.6 Gbit/s.
const BEGINS: u64 = 2_000_000;

/// Bytes in a window below which it is none any more: 0.8 Gbit/s.
const ENDS: u64 = 1_000_000;

/// What a thread has carried lately.
#[derive(Default)]
pub(crate) struct Bulk {
    since: Instant,
    bytes: u64,
    is_bulk: bool,
    /// Its class was changed when it became that.
    changed: bool,
}

impl Bulk {
    /// Notes that the calling thread has carried `bytes`, and asks the system
    /// for what becomes a thread that carries as much. A refusal changes
    /// nothing but speed; a thread to which somebody has given another class
    /// keeps it.
    pub(crate) fn carried(&mut self, now: Instant, bytes: usize) {
        match self.class(now, bytes) {
            Some(Class::Batch) => {
                self.changed = change_class(Class::Normal, Class::Batch).unwrap_or(false);
            }
            Some(Class::Normal) if self.changed => {
                let _ = change_class(Class::Batch, Class::Normal);
            }
            Some(Class::Normal) | None => {}
        }
    }

    /// The class that is right from now on, if it is another.
    fn class(&mut self, now: Instant, bytes: usize) -> Option<Class> {
        self.bytes += bytes as u64;
        let took = now.since(self.since);
        if took < WINDOW {
            return None;
        }
        // A window is longer than it should be by what the last packet took to
        // come.
        let windows = u64::try_from(took.as_nanos() / WINDOW.as_nanos()).unwrap_or(u64::MAX);
        let each = self.bytes / windows.max(1);
        (self.since, self.bytes) = (now, 0);
        let is_bulk = each >= if self.is_bulk { ENDS } else { BEGINS };
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

    /// What is said when `bytes` are carried every millisecond for 30 ms.
    fn at(bulk: &mut Bulk, start: u64, bytes: usize) -> Vec<Class> {
        let times = (0..30).map(|i| Instant((start + i) * 1_000_000));
        times.filter_map(|now| bulk.class(now, bytes)).collect()
    }

    #[test]
    fn bulk_is_what_carries_much_and_for_as_long() {
        let mut bulk = Bulk::default();
        assert_eq!(at(&mut bulk, 1000, 100), []);
        assert_eq!(at(&mut bulk, 1030, 190_000), [], "below 1.6 Gbit/s");
        assert_eq!(at(&mut bulk, 1060, 210_000), [Class::Batch]);
        assert_eq!(at(&mut bulk, 1090, 110_000), [], "above 0.8 Gbit/s");
        assert_eq!(at(&mut bulk, 1120, 90_000), [Class::Normal]);
        assert_eq!(at(&mut bulk, 1150, 190_000), []);
    }

    #[test]
    fn one_large_batch_after_a_pause_is_no_bulk() {
        let mut bulk = Bulk::default();
        for second in 1..10 {
            let now = Instant(second * 1_000_000_000);
            assert_eq!(bulk.class(now, 8 * 65_536 * 4), None);
        }
    }

    #[test]
    fn the_first_packet_after_bulk_ends_it() {
        let mut bulk = Bulk::default();
        assert_eq!(at(&mut bulk, 1000, 500_000), [Class::Batch]);
        let later = Instant(2_000_000_000);
        assert_eq!(bulk.class(later, 100), Some(Class::Normal));
    }
}

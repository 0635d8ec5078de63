//! The number of changes of the network that carries the datagrams, and their firewall mark.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Number of changes of routes, addresses and the mark, and the mark. Written by the control loop.
#[derive(Default)]
pub(crate) struct Changes {
    count: AtomicU64,
    mark: AtomicU32,
}

impl Changes {
    /// Records a change of routes or addresses.
    pub(crate) fn note(&self) {
        // A thread that reads the new number also sees the state that has changed (Release).
        self.count.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn set_mark(&self, mark: u32) {
        self.mark.store(mark, Ordering::Relaxed);
        self.note();
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns the mark, which is at least as new as the last number that this thread has read.
    pub(crate) fn mark(&self) -> u32 {
        self.mark.load(Ordering::Relaxed)
    }
}

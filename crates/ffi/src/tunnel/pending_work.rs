//! A note that the packet path has left work for the lock of handshakes and timers.

use super::sync::{AtomicBool, Ordering};

/// Set after the packet path has queued work, and cleared before the queue is emptied: queued work
/// is never without the note for longer than a thread empties the queue.
pub(super) struct PendingWork(AtomicBool);

impl PendingWork {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Call it after the work has been queued.
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Clears the note. If this returns true, the caller must empty the queue.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

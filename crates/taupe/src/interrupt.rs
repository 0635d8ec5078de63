//! Interrupts by the user or the system.

use crate::system;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flag that is set once the process is asked to end.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches signals for the rest of the process's life. Calls `on_end` on SIGTERM and SIGINT,
    /// which ask it to end, and `on_hangup` on SIGHUP.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses.
    pub(crate) fn catching(
        mut on_end: impl FnMut() + Send + 'static,
        on_hangup: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let caught = Self::default();
        let interrupt = caught.clone();
        let end = move || {
            interrupt.set(true);
            on_end();
        };
        system::on_signal(end, on_hangup)?;
        Ok(caught)
    }

    /// Checks whether the process was asked to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets or clears the flag. The next request to end sets it again.
    pub(crate) fn set(&self, is_set: bool) {
        self.0.store(is_set, Ordering::Relaxed);
    }
}

//! The signals that ask a process to end.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::{io, thread};

/// Handler for SIGTERM and SIGINT that keeps them from ending the process at once.
///
/// The signals are caught by handlers rather than blocked for a `signalfd(2)`: a program that is
/// started later would inherit a blocked signal, but does not inherit a handler (`signal(7)`).
pub struct Termination {
    signals: Signals,
}

impl Termination {
    /// Catches the signals from now on, for the life of the process. A signal that arrives before
    /// [`Self::then`] is delivered to it.
    ///
    /// # Errors
    ///
    /// If no descriptor is left for the pipe that the handlers write to.
    pub fn catch() -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT])?;
        Ok(Self { signals })
    }

    /// Calls `end` in a new thread with the name of the first signal. Further signals have no
    /// effect: `timeout(1)`, for example, sends its signal twice, and the second must not interrupt
    /// the shutdown that the first began.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if no thread can be started.
    pub fn then(mut self, end: impl FnOnce(&'static str) + Send + 'static) -> io::Result<()> {
        let wait = move || {
            if let Some(signal) = self.signals.forever().next() {
                end(name(signal));
            }
        };
        let builder = thread::Builder::new().name("signals".into());
        builder.spawn(wait).map(drop)
    }
}

fn name(signal: i32) -> &'static str {
    if signal == SIGINT {
        "SIGINT"
    } else {
        "SIGTERM"
    }
}

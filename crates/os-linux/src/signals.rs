//! The signals that ask a process to end.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::{io, thread};

/// SIGTERM and SIGINT, kept from ending the process at once.
///
/// They are caught by handlers rather than blocked for a `signalfd(2)`, because
/// a program that is started later inherits a blocked signal but not a handler
/// (`signal(7)`).
pub struct Termination {
    signals: Signals,
}

impl Termination {
    /// Catches the signals from now on. One that comes before [`Self::then`]
    /// is kept for it. They stay caught for the life of the process.
    ///
    /// # Errors
    ///
    /// When there is no descriptor left for the pipe that handlers write to.
    pub fn catch() -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT])?;
        Ok(Self { signals })
    }

    /// Calls `end` in a thread of its own with the name of the first signal.
    /// Further signals change nothing: `timeout(1)`, for one, sends its signal
    /// twice, and the second must not cut short what the first began.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when there can be no further thread.
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

//! Lines for whoever wants to read what tunnels do. No key is in any.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

/// How much a line matters, as boringtun numbers it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// A tunnel does not work.
    Error = 0,
    /// Sessions that come and go.
    Info = 1,
    /// Each handshake message.
    Debug = 2,
    /// Each packet that is dropped.
    Trace = 3,
}

impl Level {
    /// The level of a number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        let all = [Self::Error, Self::Info, Self::Debug, Self::Trace];
        all.into_iter().find(|level| *level as u32 == number)
    }
}

/// Where lines go: called from whichever thread calls the tunnel, without any lock held.
pub struct Sink {
    write: Box<dyn Fn(&str) + Send + Sync>,
    level: AtomicU8,
}

impl Sink {
    /// Lines up to `level` go to `write`.
    #[must_use]
    pub fn new(level: Level, write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            write: Box::new(write),
            level: AtomicU8::new(level as u8),
        }
    }

    /// Changes up to which level lines are written.
    pub fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Relaxed);
    }

    pub(crate) fn say(&self, level: Level, line: impl FnOnce() -> String) {
        if level as u8 <= self.level.load(Ordering::Relaxed) {
            (self.write)(&line());
        }
    }
}

static PROCESS: OnceLock<Sink> = OnceLock::new();

/// Has the lines of all tunnels that have no sink of their own go to `sink`. `false` if
/// that has been said before.
pub fn set_process_sink(sink: Sink) -> bool {
    PROCESS.set(sink).is_ok()
}

/// The sink of the process, if there is one.
#[must_use]
pub fn process_sink() -> Option<&'static Sink> {
    PROCESS.get()
}

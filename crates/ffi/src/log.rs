//! Log lines of tunnels. They contain no keys.

use core::sync::atomic::{AtomicU8, Ordering};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Level of a log line, with boringtun's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// A tunnel does not work.
    Error = 0,
    /// A session begins or ends.
    Info = 1,
    /// Each handshake message.
    Debug = 2,
    /// Each dropped packet.
    Trace = 3,
}

impl Level {
    /// Returns the level with this number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        let all = [Self::Error, Self::Info, Self::Debug, Self::Trace];
        all.into_iter().find(|level| *level as u32 == number)
    }
}

type Write = dyn Fn(Level, &str) + Send + Sync;

/// Receiver of log lines.
///
/// The thread that calls a tunnel calls its sink, without holding a lock of a tunnel. Only one
/// thread of the process is in a sink at a time. A sink may call tunnels; lines that these calls
/// cause are discarded. It must not wait for another thread that calls a tunnel.
pub struct Sink {
    write: Box<Write>,
    level: AtomicU8,
}

impl Sink {
    /// Returns a sink that passes lines up to `level` to `write`, without a line end.
    #[must_use]
    pub fn new(level: Level, write: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        Self {
            write: Box::new(write),
            level: AtomicU8::new(level as u8),
        }
    }

    /// Sets the level up to which lines are written.
    pub fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Relaxed);
    }

    pub(crate) fn log(&self, level: Level, line: impl FnOnce() -> String) {
        if level as u8 <= self.level.load(Ordering::Relaxed)
            && let Some(_turn) = Turn::take()
        {
            (self.write)(level, &line());
        }
    }
}

/// The right to write a line. There is one for all sinks, because several may call the same
/// function.
struct Turn {
    _lock: MutexGuard<'static, ()>,
}

thread_local! {
    static WRITING: Cell<bool> = const { Cell::new(false) };
}

impl Turn {
    /// Waits for the right to write. Returns `None` if this thread already has it.
    fn take() -> Option<Self> {
        static LOCK: Mutex<()> = Mutex::new(());
        if WRITING.get() {
            return None;
        }
        let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        WRITING.set(true);
        Some(Self { _lock: lock })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        WRITING.set(false);
    }
}

static PROCESS: OnceLock<Sink> = OnceLock::new();

/// Sets the sink of all tunnels without a sink of their own. Returns false if one has been set
/// before.
pub fn set_process_sink(sink: Sink) -> bool {
    PROCESS.set(sink).is_ok()
}

/// Returns the sink of the process, if there is one.
#[must_use]
pub fn process_sink() -> Option<&'static Sink> {
    PROCESS.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;
    use core::time::Duration;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn sinks_get_one_line_at_a_time() {
        let inside = Arc::new(AtomicUsize::new(0));
        let sinks = [(); 2].map(|()| {
            let inside = Arc::clone(&inside);
            Sink::new(Level::Trace, move |_, _| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                thread::sleep(Duration::from_micros(100));
                inside.fetch_sub(1, Ordering::SeqCst);
            })
        });
        thread::scope(|scope| {
            for i in 0..4 {
                let sink = &sinks[i % 2];
                scope.spawn(move || {
                    for _ in 0..50 {
                        sink.log(Level::Info, || "a line".to_owned());
                    }
                });
            }
        });
    }

    #[test]
    fn lines_caused_by_a_sink_are_discarded() {
        let written = Arc::new(AtomicUsize::new(0));
        let inner = {
            let written = Arc::clone(&written);
            Arc::new(Sink::new(Level::Trace, move |_, _| {
                written.fetch_add(1, Ordering::SeqCst);
            }))
        };
        let outer = {
            let inner = Arc::clone(&inner);
            Sink::new(Level::Trace, move |_, _| {
                inner.log(Level::Error, || "within another".to_owned());
            })
        };
        outer.log(Level::Error, || "a line".to_owned());
        assert_eq!(written.load(Ordering::SeqCst), 0);
        // The right is released even if a sink panics.
        let broken = Sink::new(Level::Trace, |_, _| panic!("caught"));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            broken.log(Level::Error, || "a line".to_owned());
        }));
        assert!(result.is_err());
        inner.log(Level::Error, || "after it".to_owned());
        assert_eq!(written.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn lines_above_the_level_are_not_formatted() {
        let sink = Sink::new(Level::Info, |level, line| {
            assert_eq!((level, line), (Level::Info, "a line"));
        });
        sink.log(Level::Debug, || unreachable!());
        sink.log(Level::Info, || "a line".to_owned());
        sink.set_level(Level::Error);
        sink.log(Level::Info, || unreachable!());
    }
}

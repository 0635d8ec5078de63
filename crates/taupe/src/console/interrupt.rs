//! Signals from the user or the system.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flag that is set once the process is asked to end.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// Request of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Request to end: SIGTERM or SIGINT. On Windows, Ctrl-C or a closing console.
    End,
    /// SIGHUP.
    #[cfg(unix)]
    Reload,
}

impl Interrupt {
    /// Catches signals for the rest of the process's life and passes them on.
    ///
    /// # Errors
    ///
    /// Fails if no file descriptor or thread is left.
    #[cfg(unix)]
    pub(crate) fn catching(mut asked: impl FnMut(Asked) + Send + 'static) -> io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        use signal_hook::iterator::Signals;

        let caught = Self::default();
        let interrupt = caught.clone();
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let listen = move || {
            for signal in signals.forever() {
                if signal == SIGHUP {
                    asked(Asked::Reload);
                } else {
                    interrupt.0.store(true, Ordering::Relaxed);
                    asked(Asked::End);
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(listen)?;
        Ok(caught)
    }

    /// Catches Ctrl-C and the like for the rest of the process's life and passes them on.
    ///
    /// # Errors
    ///
    /// Fails if called twice, or if the system refuses.
    #[cfg(windows)]
    pub(crate) fn catching(asked: impl Fn(Asked) + Send + Sync + 'static) -> io::Result<Self> {
        let caught = Self::default();
        let interrupt = caught.clone();
        taupe_os_windows::console::on_end(move || {
            interrupt.0.store(true, Ordering::Relaxed);
            asked(Asked::End);
        })?;
        Ok(caught)
    }

    /// Checks whether the process was asked to end.
    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the flag after the interrupted operation has ended. The next signal sets it again.
    #[cfg(target_os = "linux")]
    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

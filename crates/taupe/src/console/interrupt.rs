//! How a person, or the system, stops what goes on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the end has been asked for.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// The end: SIGTERM or SIGINT; on Windows Ctrl-C, or that the console closes.
    End,
    /// SIGHUP.
    #[cfg(unix)]
    Reload,
}

impl Interrupt {
    /// Catches what asks for something for the rest of the process's life, and passes it on.
    ///
    /// # Errors
    ///
    /// When there is no descriptor or thread left for it.
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

    /// Catches what asks for something for the rest of the process's life, and passes it on.
    ///
    /// # Errors
    ///
    /// When it has been called before, or the system refuses.
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

    /// Whether the end has been asked for.
    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// What was interrupted has ended: from here on it takes another one.
    #[cfg(target_os = "linux")]
    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

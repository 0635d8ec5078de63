//! Signals that are passed on to the command.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use signal_hook::consts::SIGCHLD;
use std::io;
use std::sync::Arc;

/// Signals that are passed on. SIGTSTP is not: it also stops this process, so that the shell
/// notices, and thereby the tunnel until SIGCONT.
const PASSED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
];

/// Blocked signals, which this process reads from a descriptor.
pub(super) struct Signals(SignalFd);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Received {
    pub(super) number: i32,
    /// True if the terminal sent the signal to its whole foreground process group, so that the
    /// command has received it too.
    pub(super) is_everybodys: bool,
}

impl Received {
    /// Checks whether the signal asks a program to end.
    pub(super) fn asks_to_end(self) -> bool {
        let ending = [
            Signal::SIGHUP,
            Signal::SIGINT,
            Signal::SIGQUIT,
            Signal::SIGTERM,
        ];
        ending.iter().any(|&signal| signal as i32 == self.number)
    }
}

impl Signals {
    /// Blocks the signals in this thread and in threads that it starts later. Child processes that
    /// were started before are not affected.
    ///
    /// SIGCHLD gets a handler, because the status of a child is lost if SIGCHLD is ignored
    /// (`wait(2)`).
    ///
    /// # Errors
    ///
    /// Fails if no file descriptor is left.
    pub(super) fn block() -> io::Result<Self> {
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let set: SigSet = PASSED.into_iter().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    ///
    /// Returns the system's error, after which no more signals can be read.
    pub(super) fn next(&self) -> io::Result<Received> {
        loop {
            if let Some(received) = self.0.read_signal()? {
                return Ok(Received {
                    number: received.ssi_signo.cast_signed(),
                    // Signals from processes have codes that are not positive (sigaction(2)).
                    is_everybodys: received.ssi_code > 0,
                });
            }
        }
    }
}

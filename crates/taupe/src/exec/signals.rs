//! Signals that are for the command.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use signal_hook::consts::SIGCHLD;
use std::io;
use std::sync::Arc;

/// Those that are passed on. SIGTSTP is not: it stops this process too, so that the shell
/// notices, and the tunnel with it until SIGCONT.
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

/// Signals that do nothing to this process but to be told of.
pub(super) struct Signals(SignalFd);

/// One that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Received {
    pub(super) number: i32,
    /// The command has got it too: from the terminal, to whose foreground it belongs.
    pub(super) is_everybodys: bool,
}

impl Received {
    /// Whether somebody who sends this wants a program to end.
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
    /// Blocks them in this thread and all that it starts from now on. A process that was
    /// started before does not know of it.
    ///
    /// SIGCHLD gets a handler, as where it is ignored nobody learns how a child ended
    /// (`wait(2)`).
    ///
    /// # Errors
    ///
    /// When there is no descriptor left.
    pub(super) fn block() -> io::Result<Self> {
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let set: SigSet = PASSED.into_iter().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for the next one.
    ///
    /// # Errors
    ///
    /// The system's; there are no more then.
    pub(super) fn next(&self) -> io::Result<Received> {
        loop {
            if let Some(received) = self.0.read_signal()? {
                return Ok(Received {
                    number: received.ssi_signo.cast_signed(),
                    // Processes send with codes that are not positive (sigaction(2)).
                    is_everybodys: received.ssi_code > 0,
                });
            }
        }
    }
}

//! Signals that are passed on to the command.

use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use std::io;
use std::sync::Arc;
use taupe_os_linux::signals::BlockedSignals;

/// Signals that are passed on. SIGTSTP is not: it also stops this process, so that the shell
/// notices, and thereby the tunnel until SIGCONT.
const PASSED: [i32; 8] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH,
];

/// Blocks [`PASSED`] in this thread and in threads that it starts later. Child processes that were
/// started before are not affected.
///
/// SIGCHLD gets a handler, because the status of a child is lost if SIGCHLD is ignored
/// (`wait(2)`).
///
/// # Errors
///
/// Fails if no file descriptor is left.
pub(super) fn block() -> io::Result<BlockedSignals> {
    signal_hook::flag::register(SIGCHLD, Arc::default())?;
    BlockedSignals::block(&PASSED)
}

/// Checks whether the signal asks a program to end.
pub(super) fn is_termination(number: i32) -> bool {
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&number)
}

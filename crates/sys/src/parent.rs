//! Processes that must not outlive the one that started them.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::io;

/// Asks the kernel to send this process `SIGKILL` when `parent`, which started
/// it, ends (`PR_SET_PDEATHSIG`, Linux 2.1.57). False when that has happened
/// already: the caller should end then.
///
/// The kernel means the *thread* that started this process: let it be one that
/// lives as long as its process. The setting is lost when this process changes
/// its user or group, runs a program with set-user-ID, set-group-ID or file
/// capabilities, and is not inherited by its children.
///
/// # Errors
///
/// None that the kernel documents for this signal.
pub fn die_with(parent: Pid) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // One that died before the call above is not noticed by the kernel.
    Ok(getppid() == Some(parent))
}

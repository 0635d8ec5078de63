//! Processes of devices that are stopped.

use std::fs;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Signal, kill_process};

/// Continues the process that listens at the other end of a connection, if it is stopped
/// (SIGSTOP): it could not end.
pub(crate) fn resume(stream: &UnixStream) {
    let Ok(credentials) = socket_peercred(stream) else {
        return;
    };
    let id = credentials.pid;
    let status = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The state follows the name, which ends with the last parenthesis (proc_pid_stat(5)).
    let is_stopped = status
        .rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
    if is_stopped {
        let _ = kill_process(id, Signal::CONT);
    }
}

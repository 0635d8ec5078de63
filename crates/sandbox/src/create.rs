//! Creation of a sandbox: forks the child and receives what it has opened.

use std::ffi::OsString;
use std::os::fd::AsFd as _;

use rustix::process::{PidfdFlags, pidfd_open};
use taupe_os_linux::process::fork;

use crate::child;
use crate::config::SandboxConfig;
use crate::process::{Child, PendingChild, PendingSandbox, SandboxError};
use taupe_os_linux::message_socket as message;

/// Forks a child that sets a sandbox up and later becomes `command`: a program, searched in `PATH`,
/// with its arguments.
///
/// # Errors
///
/// See [`SandboxError`]. Also fails if this process has more than one thread.
pub fn create_sandbox(
    config: &SandboxConfig,
    command: &[OsString],
) -> Result<PendingSandbox, SandboxError> {
    let (socket, theirs) = message::pair().map_err(SandboxError::Process)?;
    let mut sockets = Some((socket, theirs));
    let pid = fork(|| match sockets.take() {
        Some((ours, socket)) => {
            // If the child held this end too, it would not notice the parent's end.
            drop(ours);
            child::run(config, socket, command)
        }
        None => child::NOT_SET_UP,
    })
    .map_err(SandboxError::Process)?;
    let handle = pidfd_open(pid, PidfdFlags::empty());
    let handle = handle.map_err(|error| SandboxError::Process(error.into()))?;
    let child = Child { pid, handle };
    let Some((socket, theirs)) = sockets else {
        return Err(SandboxError::ChildEnded);
    };
    drop(theirs);
    match message::receive(socket.as_fd()) {
        Ok(Some(message)) => child::parse_setup_message(message, PendingChild { child, socket }),
        Ok(None) => Err(SandboxError::ChildEnded),
        Err(error) => Err(SandboxError::Process(error)),
    }
}

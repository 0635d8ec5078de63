//! A sandbox and its child process, as the parent sees them.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::process::{Pid, Signal, pidfd_send_signal};
use taupe_os_linux::watch::LinkWatch;

use crate::obstacle::Obstacle;
use taupe_os_linux::message_socket as message;

/// Message to the child: the TUN is served.
const RELEASE: &[u8] = b"go";

/// Reason why there is no sandbox. Nothing of it remains.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The child failed.
    #[error("{reason}")]
    SetupFailed {
        /// The step that failed, and why.
        reason: String,
        /// The obstacle to remove, if it is known.
        obstacle: Option<Obstacle>,
    },
    /// The child ended without a message.
    #[error("the command's process was ended before it ran the command")]
    ChildEnded,
    /// The process or its socket could not be created.
    #[error("cannot start a process for the command: {0}")]
    Process(#[source] io::Error),
}

/// A sandbox whose command has not started.
#[derive(Debug)]
pub struct PendingSandbox {
    /// The TUN, which is up.
    pub tun: OwnedFd,
    /// Watch of the TUN from inside its network namespace.
    pub watch: LinkWatch,
    /// Namespaces through which other commands join.
    pub namespaces: Namespaces,
    /// Remarks for the user, one sentence each.
    pub remarks: Vec<String>,
    /// The child, which waits until the TUN is served.
    pub child: PendingChild,
}

/// The child process that becomes the command.
#[derive(Debug)]
pub struct Child {
    /// Its process ID, valid until it is waited for.
    pub pid: Pid,
    pub(crate) handle: OwnedFd,
}

/// Namespaces of a sandbox.
#[derive(Debug)]
pub struct Namespaces {
    pub(crate) user: OwnedFd,
    pub(crate) network: OwnedFd,
    pub(crate) mount: OwnedFd,
}

/// A child that waits until the TUN is served.
#[derive(Debug)]
pub struct PendingChild {
    pub(crate) child: Child,
    pub(crate) socket: OwnedFd,
}

impl PendingChild {
    /// Starts the command.
    ///
    /// # Errors
    ///
    /// Returns an error if the child has ended.
    pub fn release(self) -> Result<Child, SandboxError> {
        let sent = message::send(self.socket.as_fd(), RELEASE, &[]);
        sent.map_err(|_| SandboxError::ChildEnded)?;
        Ok(self.child)
    }
}

impl Child {
    /// Sends the process a signal. Returns false if it has ended.
    pub fn signal(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.handle, signal).is_ok()
    }
}

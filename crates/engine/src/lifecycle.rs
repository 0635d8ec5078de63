//! Start and end of a device: errors of starting, reasons for ending, threads.

use std::io;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use taupe_os_linux::tun;
use taupe_runtime::configuration_socket::ListenError;
use thiserror::Error;

/// Error from starting a device. Everything that had been created is removed again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The TUN cannot be opened.
    #[error(transparent)]
    Tun(#[from] tun::OpenError),
    /// There is no configuration socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The process that was to run the device reports this.
    #[error("{0}")]
    Reported(String),
    /// The process that was to run the device has ended without a report.
    #[error("{0}")]
    Ended(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Reason for which a device ended.
#[derive(Debug, Serialize, Deserialize)]
pub enum Exit {
    /// Its interface was deleted.
    InterfaceDeleted,
    /// Its configuration socket was removed.
    SocketRemoved,
    /// [`Stopper::stop`](crate::Stopper::stop) was called.
    Stopped,
    /// It could not continue.
    Failed(String),
}

/// Returns a function that adds the step to an error of a system call.
pub(crate) fn system_error<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> StartError {
    move |source| StartError::System {
        what,
        source: source.into(),
    }
}

/// Starts a thread of the device.
pub(crate) fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StartError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map_err(|source| StartError::System {
            what: "cannot start a thread",
            source,
        })
}

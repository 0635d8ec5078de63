//! Errors of tunnels and of their sockets.

use std::io::{self, ErrorKind};

use taupe_stack::OpenError;
use taupe_stack::failure::ConnectFailure;

use crate::config::ConfigError;

/// Reason why a tunnel could not be opened. All its resources are freed.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The text is no valid configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tunnel cannot be opened with this configuration, or not now.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system has no thread or no event queue for the tunnel.
    #[error("cannot start the tunnel's thread: {0}")]
    Thread(#[source] io::Error),
}

/// Returns the error of a connection or look-up.
pub(crate) fn failed(failure: ConnectFailure) -> io::Error {
    let kind = match failure {
        ConnectFailure::Network => ErrorKind::NetworkUnreachable,
        ConnectFailure::Tunnel | ConnectFailure::NameServers | ConnectFailure::Silence => {
            ErrorKind::TimedOut
        }
        ConnectFailure::NoSuchName => ErrorKind::NotFound,
        ConnectFailure::NoAddress => ErrorKind::AddrNotAvailable,
        ConnectFailure::NoNameServers => ErrorKind::Unsupported,
        ConnectFailure::Host | ConnectFailure::HopLimit => ErrorKind::HostUnreachable,
        ConnectFailure::Refused => ErrorKind::ConnectionRefused,
        ConnectFailure::Busy => ErrorKind::ResourceBusy,
    };
    io::Error::new(kind, failure.reason())
}

/// Returns the error of an operation on a closed tunnel.
pub(crate) fn closed() -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, "the tunnel is closed")
}

//! The socket between front and service.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use taupe_os_linux::message_socket::{self, Message};
use thiserror::Error;

use crate::message::VERSION;

/// Error of the socket between front and service.
#[derive(Debug, Error)]
pub enum LinkError {
    /// A system call failed.
    #[error("the socket of the service: {0}")]
    Io(#[from] io::Error),
    /// A message is longer than [`crate::MAX_TEXT`].
    #[error("a message is longer than {} bytes", crate::MAX_TEXT)]
    TooLong,
    /// A message is not one of this version.
    #[error("a message is invalid")]
    Invalid,
    /// The other end has another version.
    #[error("a message has version {0}, and this program has {VERSION}; restart the service")]
    Version(u32),
    /// Descriptors are missing, because this process can open no more.
    #[error("a message lacks descriptors")]
    Descriptors,
    /// The other end does not send or read a message in time.
    #[error("there was no message in time")]
    Late,
    /// The other end has closed the connection.
    #[error("the connection was closed")]
    Closed,
}

/// A message with its version.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Versioned<T> {
    version: u32,
    message: T,
}

/// The version of a message that this version cannot read.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

/// One end of the socket.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Returns this end of a connection.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Connects to the service.
    ///
    /// # Errors
    /// The system's error.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Returns the user ID of the process that made the other end.
    ///
    /// # Errors
    /// The system's error.
    pub fn peer(&self) -> io::Result<u32> {
        Ok(socket_peercred(&self.0)?.uid.as_raw())
    }

    /// Limits the time to wait for a message of the other end, and for it to read one.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.0, timeout, Some(patience))?;
        }
        Ok(())
    }

    /// Sends a message and copies of descriptors.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        message_socket::send(self.0.as_fd(), &text_of(message)?, descriptors).map_err(of_call)
    }

    /// Receives a message and its descriptors.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), LinkError> {
        let message = message_socket::receive_any(self.0.as_fd()).map_err(of_call)?;
        let Message {
            text,
            descriptors,
            lacks_descriptors,
        } = message.ok_or(LinkError::Closed)?;
        if lacks_descriptors {
            return Err(LinkError::Descriptors);
        }
        Ok((parse(&text)?, descriptors))
    }

    /// Ends both directions.
    pub fn close(&self) {
        // It fails only if the other end is closed already.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// Returns the text of a message with its version.
pub(crate) fn text_of(message: &impl Serialize) -> Result<Vec<u8>, LinkError> {
    let version = VERSION;
    let text = serde_json::to_vec(&Versioned { version, message });
    text.map_err(|_| LinkError::Invalid)
}

/// Parses the text of a message.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, LinkError> {
    let any: AnyVersion = serde_json::from_slice(text).map_err(|_| LinkError::Invalid)?;
    if any.version != VERSION {
        return Err(LinkError::Version(any.version));
    }
    let read: Versioned<T> = serde_json::from_slice(text).map_err(|_| LinkError::Invalid)?;
    Ok(read.message)
}

fn of_call(error: io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LinkError::Closed,
        io::ErrorKind::WouldBlock => LinkError::Late,
        _ if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
            LinkError::TooLong
        }
        _ => LinkError::Io(error),
    }
}

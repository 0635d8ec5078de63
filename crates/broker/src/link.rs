//! The socket between the two processes.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use serde::Serialize;
use taupe_os_linux::message_socket::{self, Message};
use thiserror::Error;

/// Error of the socket between the two processes.
#[derive(Debug, Error)]
pub enum LinkError {
    /// A system call failed.
    #[error("the socket to the other process of the device: {0}")]
    Io(#[from] io::Error),
    /// A message is not one of this version.
    #[error("a message of the other process of the device is invalid: {0}")]
    Invalid(#[from] serde_json::Error),
    /// The other process has another version.
    #[error("the other process of the device has version {0} of the messages, this one has {1}")]
    Version(u32, u32),
    /// The other process does something that it must not.
    #[error("the other process of the device misbehaves: {0}")]
    Unexpected(&'static str),
    /// The other process has ended.
    #[error("the other process of the device has ended")]
    Closed,
}

/// One end of the socket. Any thread may send, one receives.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Returns the end of a broker. A packet process that reads no messages for `patience` misbehaves.
    pub(crate) fn of_broker(socket: OwnedFd, patience: Duration) -> io::Result<Self> {
        set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        Ok(Self(socket))
    }

    pub(crate) fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        let text = serde_json::to_vec(message)?;
        match message_socket::send(self.0.as_fd(), &text, descriptors) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(LinkError::Closed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(LinkError::Unexpected("it does not read its messages"))
            }
            sent => Ok(sent?),
        }
    }

    /// Ends both directions: the other process and all threads of this one find the socket closed.
    pub(crate) fn close(&self) {
        // It fails only if the other process has ended.
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    /// Checks whether the other process has ended.
    pub(crate) fn is_closed(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(&self.0, &mut [0; 1], flags).is_ok_and(|(length, _)| length == 0)
    }

    pub(crate) fn receive_text(&self) -> Result<Message, LinkError> {
        message_socket::receive_any(self.0.as_fd())?.ok_or(LinkError::Closed)
    }
}

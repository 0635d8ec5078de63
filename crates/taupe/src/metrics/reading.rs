//! The figures at one time, and how a process passes them to another.

use crate::console::say;
use crate::status::with_advice;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use taupe_inspect::metrics::{Format, Metrics};
use taupe_inspect::status::Files;
use taupe_os_linux::message_socket;

/// Bytes of the figures, at most. 100,000 peers have some 50 MiB.
const MAX_TEXT: u64 = 256 << 20;

/// Readiness of this machine's tunnels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Readiness {
    Ready,
    NothingThere,
    NotCarried,
    /// The state cannot be read.
    Unknown,
}

impl Readiness {
    fn of(metrics: &Metrics) -> Self {
        match (metrics.is_empty(), metrics.carries_all()) {
            (true, _) => Self::NothingThere,
            (false, false) => Self::NotCarried,
            (false, true) => Self::Ready,
        }
    }
}

/// The figures at one time.
pub(super) struct Reading {
    pub(super) readiness: Readiness,
    /// `None` if they cannot be read.
    pub(super) text: Option<Arc<str>>,
}

impl Reading {
    /// Reads the figures. An error is printed. `files` are those of the previous reading.
    pub(super) fn take(version: &'static str, format: Format, files: &mut Files) -> Self {
        match Metrics::read(version, files) {
            Ok(metrics) => Self {
                readiness: Readiness::of(&metrics),
                text: Some(metrics.text(format).into()),
            },
            Err(error) => {
                say(&format_args!("[!] {}", with_advice(&error)));
                Self::unknown()
            }
        }
    }

    pub(super) fn unknown() -> Self {
        Self {
            readiness: Readiness::Unknown,
            text: None,
        }
    }

    /// Sends the figures, whose text is too long for a message and therefore in a file in memory.
    pub(super) fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let message = serde_json::to_vec(&self.readiness)?;
        let Some(text) = &self.text else {
            return message_socket::send(socket, &message, &[]);
        };
        let mut file = File::from(memfd_create("taupe-metrics", MemfdFlags::CLOEXEC)?);
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        message_socket::send(socket, &message, &[file.as_fd()])
    }

    /// Receives what [`Self::send`] has sent.
    pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let message = message_socket::receive(socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let readiness = serde_json::from_slice(&message.text)?;
        let mut files = message.descriptors.into_iter().map(File::from);
        let text = files.next().map(|file| {
            let mut text = String::new();
            let read = file.take(MAX_TEXT).read_to_string(&mut text);
            read.map(|_| text.into())
        });
        Ok(Self {
            readiness,
            text: text.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Readiness, Reading};
    use std::os::fd::AsFd as _;
    use taupe_os_linux::message_socket;

    #[test]
    fn figures_are_received_as_they_were_sent() {
        let (sender, receiver) = message_socket::pair().expect("sockets");
        let long = "a line\n".repeat(1 << 17);
        for (readiness, text) in [
            (Readiness::Ready, Some(long.as_str())),
            (Readiness::NothingThere, Some("")),
            (Readiness::Unknown, None),
        ] {
            let text = text.map(Into::into);
            let sent = Reading { readiness, text };
            sent.send(sender.as_fd()).expect("sent");
            let received = Reading::receive(receiver.as_fd()).expect("received");
            assert_eq!(received.readiness, sent.readiness);
            assert!(received.text == sent.text, "{readiness:?}");
        }
        drop(sender);
        assert!(Reading::receive(receiver.as_fd()).is_err());
    }
}

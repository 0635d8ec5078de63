//! The identity of a running device: its process, not its interface's name.
//!
//! An interface may be renamed or moved to another network namespace, for example by `PostUp = ip
//! link set %i netns container`. The process and its configuration socket stay where they are, so
//! the journal records which file the socket is.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stopped;

/// Time limit for a process to answer; a process that does not answer in time counts as running.
const PATIENCE: Duration = Duration::from_secs(1);

/// The file of a device's configuration socket, by its device and inode number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Socket {
    device: u64,
    inode: u64,
}

/// The location of a running tunnel's interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this network namespace, with its own name.
    Here,
    /// In this network namespace, with another name.
    Renamed(String),
    /// In another network namespace.
    Elsewhere,
}

impl Socket {
    /// Returns the socket with an interface's name.
    #[must_use]
    pub fn of(interface: &str) -> Option<Self> {
        let data = fs::symlink_metadata(taupe_client::socket_path(interface)).ok()?;
        Some(Self {
            device: data.dev(),
            inode: data.ino(),
        })
    }

    /// Returns true if the process that created the socket is running. A process that was just
    /// killed still listens after its interface has gone, but does not answer.
    pub(crate) fn lives(self, interface: &str) -> bool {
        Self::of(interface) == Some(self) && taupe_client::is_alive(interface, PATIENCE)
    }

    /// Removes the socket, whereupon its process ends and its interface disappears from whatever
    /// network namespace it is in. Waits at most `patience` for the end.
    pub(crate) fn end(self, interface: &str, patience: Duration) -> io::Result<()> {
        if Self::of(interface) != Some(self) {
            return Ok(());
        }
        // Connected before the name is removed; the connection breaks when the process ends.
        let path = taupe_client::socket_path(interface);
        let mut connection = taupe_client::connect_to(&path);
        stopped::resume(&path, &connection);
        let is_full = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if connection.as_ref().is_err_and(is_full) {
            // There is space in the queue once the process continues.
            connection = taupe_client::connect_to(&path);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut connection = match connection {
            Ok(connection) => connection,
            // The process does not continue, so its end cannot be detected.
            Err(error) if is_full(&error) => return Err(io::ErrorKind::TimedOut.into()),
            // No process listens: it was killed.
            Err(_) => return Ok(()),
        };
        connection.set_read_timeout(Some(patience))?;
        match connection.read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::TimedOut.into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
impl Socket {
    pub(crate) const fn numbered(inode: u64) -> Self {
        Self { device: 0, inode }
    }
}

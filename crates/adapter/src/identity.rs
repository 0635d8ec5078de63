//! The identity of a running device: its process, not its interface's name.
//!
//! An interface may be renamed, or moved to another network namespace, for
//! example by `PostUp = ip link set %i netns container`. Its process and the
//! process's configuration socket stay where they are, so the journal notes
//! which file that socket is.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use taupe_os_linux::run_directory;

use crate::stopped;

/// Time that a process has for an answer; one that is silent is there.
const PATIENCE: Duration = Duration::from_secs(1);

/// The file of a device's configuration socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Socket {
    device: u64,
    inode: u64,
}

/// The place of a running tunnel's interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this network namespace, by its own name.
    Here,
    /// In this network namespace, by another name.
    Renamed(String),
    /// In another network namespace.
    Elsewhere,
}

impl Socket {
    /// The socket that has an interface's name.
    #[must_use]
    pub fn of(interface: &str) -> Option<Self> {
        let data = fs::symlink_metadata(path(interface)).ok()?;
        Some(Self {
            device: data.dev(),
            inode: data.ino(),
        })
    }

    /// Checks whether the process that made it is there. One that was killed a moment ago
    /// still listens when its interface has gone, but does not answer.
    pub(crate) fn lives(self, interface: &str) -> bool {
        Self::of(interface) == Some(self) && taupe_client::lives(interface, PATIENCE)
    }

    /// Removes it, whereupon its process ends and takes the interface along,
    /// wherever that is. Waits for the end, at most for `patience`.
    pub(crate) fn end(self, interface: &str, patience: Duration) -> io::Result<()> {
        if Self::of(interface) != Some(self) {
            return Ok(());
        }
        // Connected while it has a name; the connection breaks when the process ends.
        let path = path(interface);
        let mut connection = taupe_client::connect_to(&path);
        stopped::resume(&path, &connection);
        let is_full = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if connection.as_ref().is_err_and(is_full) {
            // There is room once the process goes on.
            connection = taupe_client::connect_to(&path);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut connection = match connection {
            Ok(connection) => connection,
            // It does not go on, so its end cannot be noticed.
            Err(error) if is_full(&error) => return Err(io::ErrorKind::TimedOut.into()),
            // Nobody listens: the process was killed.
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

/// Where an interface's configuration socket is.
pub(crate) fn path(interface: &str) -> PathBuf {
    PathBuf::from(run_directory::PATH).join(format!("{interface}.sock"))
}

#[cfg(test)]
impl Socket {
    pub(crate) const fn numbered(inode: u64) -> Self {
        Self { device: 0, inode }
    }
}

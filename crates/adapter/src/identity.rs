//! The identity of a running device: its process, not its interface's name.
//!
//! An interface may be renamed, or moved to another network namespace, for
//! example by `PostUp = ip link set %i netns container`. Its process and the
//! process's configuration socket stay where they are, so the journal notes
//! which file that socket is.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use taupe_sys::run_directory;

use crate::stopped;

/// How long a process has for an answer; one that is silent is there.
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

    /// Whether the process that made it is there. One that was killed a moment ago
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
        let connection = UnixStream::connect(path(interface));
        match fs::remove_file(path(interface)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Nobody listens: the process was killed.
        let Ok(mut connection) = connection else {
            return Ok(());
        };
        stopped::resume(&connection);
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

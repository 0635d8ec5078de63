//! Locks: only one process at a time may change a tunnel.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use taupe_os_bsd::System;

use super::{Header, Journal, JournalError, failed};

/// Interval between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(20);

/// The folder of journals.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    /// Returns the folder of a system. macOS empties /var/run at each boot, and keeps the name
    /// servers that the journal restores.
    #[must_use]
    pub fn of(system: System) -> Self {
        Self::at(match system {
            System::FreeBsd => "/var/run/wireguard",
            System::MacOs => "/var/db/taupe",
        })
    }

    /// Returns a folder for tests.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// Returns the path of a tunnel's journal.
    #[must_use]
    pub fn journal(&self, interface: &str) -> PathBuf {
        self.directory.join(format!("{interface}.taupe-adapter"))
    }

    /// Locks a tunnel, so that no other process may change it until the lock is dropped.
    ///
    /// # Errors
    /// [`JournalError::Busy`] if another process holds the lock for longer than `timeout`.
    pub fn lock(&self, interface: &str, timeout: Duration) -> Result<Lock, JournalError> {
        let end = Instant::now() + timeout;
        let mut folder = DirBuilder::new();
        let made = folder.recursive(true).mode(0o755).create(&self.directory);
        made.map_err(failed("create the folder", &self.directory))?;
        let path = self.directory.join(format!("{interface}.taupe-lock"));
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = options
                .mode(0o600)
                .open(&path)
                .map_err(failed("open", &path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(JournalError::Busy(interface.to_owned()));
                }
                Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
            }
            // The previous owner may have removed the file, and another process may have locked a
            // new one of the same name.
            if is_at(&file, &path) {
                let journal = self.journal(interface);
                return Ok(Lock {
                    path,
                    journal,
                    _file: file,
                });
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    let locked = file.metadata().map(identity);
    let named = fs::metadata(path).map(identity);
    matches!((locked, named), (Ok(locked), Ok(named)) if locked == named)
}

/// The lock for changing a tunnel.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    journal: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked, so no other process has locked this file.
        let _ = fs::remove_file(&self.path);
    }
}

impl Lock {
    /// Returns the tunnel's journal, or `None` if there is none.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn journal(&self) -> Result<Option<Journal>, JournalError> {
        Journal::open(&self.journal)
    }

    /// Creates a journal.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub(crate) fn begin(&self, header: Header) -> Result<Journal, JournalError> {
        Journal::create(&self.journal, header)
    }
}

//! Locks. Only one process at a time may change an interface, and only one may examine and change
//! the network.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::record::{Contents, line};
use super::{Header, Journal, JournalError, State, failed};

/// Interval between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(20);

/// Time limit for other tunnels that are being brought up.
pub(super) const TURN: Duration = Duration::from_secs(60);

impl State {
    /// Locks `interface`, so that no other process may change it until the lock is dropped.
    ///
    /// # Errors
    /// [`JournalError::Busy`] if another process holds the lock for longer than `patience`.
    pub fn lock(&self, interface: &str, patience: Duration) -> Result<Lock, JournalError> {
        let end = Instant::now() + patience;
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory);
        made.map_err(failed("make the folder", &self.directory))?;
        let path = self.lock_path(interface);
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.mode(0o600).open(&path);
            let mut file = file.map_err(failed("open", &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let holder = fs::read_to_string(&path).unwrap_or_default();
                    return Err(JournalError::Busy {
                        interface: interface.to_owned(),
                        process: holder.trim().parse().ok(),
                    });
                }
                Err(error) => return Err(failed("lock", &path)(error.into())),
            }
            // The previous owner may have removed the file, and another process may have locked a
            // new one of the same name.
            if !is_at(&file, &path) {
                continue;
            }
            // The id is only used in the error message of another process.
            let _ = file
                .set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            return Ok(Lock {
                path,
                _file: file,
                journal: self.journal(interface),
            });
        }
    }

    /// Waits until no other process is between examining the network and having changed it. The
    /// choices of each process (tables, rule priorities, routes to omit) depend on the changes of
    /// the others.
    ///
    /// # Errors
    /// [`JournalError::Crowded`] if that takes longer than a minute, or if `is_over` returns true.
    pub(crate) fn turn(&self, is_over: &dyn Fn() -> bool) -> Result<Turn, JournalError> {
        let end = Instant::now() + TURN;
        // The folder itself is locked, because a file in it would be left behind.
        let path = &self.directory;
        let file = File::open(path).map_err(failed("open", path))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Turn(file)),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end && !is_over() => {
                    std::thread::sleep(PAUSE);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(JournalError::Crowded(path.clone()));
                }
                Err(error) => return Err(failed("lock", path)(error.into())),
            }
        }
    }

    /// Returns true if a process is bringing this tunnel up or down, or reloading it.
    pub(crate) fn is_changing(&self, interface: &str) -> bool {
        let lock = File::open(self.lock_path(interface));
        lock.is_ok_and(|lock| {
            let locked = flock(&lock, FlockOperation::NonBlockingLockShared);
            locked == Err(rustix::io::Errno::WOULDBLOCK)
        })
    }

    fn lock_path(&self, interface: &str) -> PathBuf {
        self.directory.join(format!("{interface}.lock"))
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    let locked = file.metadata().map(identity);
    let named = fs::metadata(path).map(identity);
    matches!((locked, named), (Ok(locked), Ok(named)) if locked == named)
}

/// The lock for examining the network and changing it accordingly.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "unlocked when it is closed")] File);

/// The lock for changing an interface.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
    journal: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked, so no other process has locked this file.
        let _ = fs::remove_file(&self.path);
    }
}

impl Lock {
    /// Returns the path of the interface's journal.
    pub(crate) fn journal_path(&self) -> &Path {
        &self.journal
    }

    /// Returns the interface's journal, or `None` if no step was executed.
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
    pub fn begin(&self, header: Header) -> Result<Journal, JournalError> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create_new(true).mode(0o600);
        let file = file.open(&self.journal);
        let mut journal = Journal {
            path: self.journal.clone(),
            file: file.map_err(failed("make", &self.journal))?,
            contents: Contents::new(header),
        };
        let begun = line(journal.header()).and_then(|line| journal.file.write_all(&line));
        if let Err(error) = begun {
            let _ = fs::remove_file(&journal.path);
            return Err(failed("write", &journal.path)(error));
        }
        Ok(journal)
    }
}

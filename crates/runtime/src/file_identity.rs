//! The identity of a file, whose path another program may give to another file.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

/// Distinguishes a file from a later one with the same path.
#[derive(PartialEq, Eq, Debug)]
pub struct FileIdentity {
    inode: u64,
    /// Some file systems give a new file the inode of one that was removed. tmpfs, which does not,
    /// may not record the time.
    created: Option<SystemTime>,
}

impl FileIdentity {
    /// Returns the identity of the file at a path, without following a symbolic link.
    ///
    /// # Errors
    /// The system's.
    pub fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::symlink_metadata(path)?;
        Ok(Self {
            inode: meta.ino(),
            created: meta.created().ok(),
        })
    }
}

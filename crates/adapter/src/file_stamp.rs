//! States of files, by which later edits are detected.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The state of a file, to detect later edits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileStamp {
    /// Time of the last modification, in seconds and nanoseconds.
    written: (i64, i64),
    /// Its length in bytes.
    length: u64,
}

impl FileStamp {
    /// Returns the present state of a file, or `None` if it cannot be examined. Of a file to read,
    /// this comes first, so that an edit during the reading is detected.
    #[must_use]
    pub fn of(file: &Path) -> Option<Self> {
        let data = fs::metadata(file).ok()?;
        Some(Self {
            written: (data.mtime(), data.mtime_nsec()),
            length: data.len(),
        })
    }
}

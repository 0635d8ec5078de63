//! Files and folders on systems without Unix permissions: they inherit those of their folder.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::path::Path;

/// Does nothing.
pub(crate) fn folder_for_owner_only(_: &mut DirBuilder) {}

/// Does nothing.
pub(crate) fn file_for_owner_only(_: &mut OpenOptions) {}

/// Does nothing: only Unix can open folders.
pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

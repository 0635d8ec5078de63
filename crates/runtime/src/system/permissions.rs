//! Files and folders on Unix.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Makes a new folder accessible to its owner only.
pub(crate) fn folder_for_owner_only(folder: &mut DirBuilder) {
    folder.mode(0o700);
}

/// Makes a new file accessible to its owner only.
pub(crate) fn file_for_owner_only(file: &mut OpenOptions) {
    file.mode(0o600);
}

/// Syncs a folder, so that a new name survives a power failure.
pub(crate) fn sync_folder(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

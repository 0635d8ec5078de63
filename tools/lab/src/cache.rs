//! The folder of what is built or downloaded once: programs, packages, boot images.

use crate::error::{Error, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Returns `TAUPE_CACHE`, or the user's cache directory.
pub(crate) fn root() -> PathBuf {
    let named = std::env::var_os("TAUPE_CACHE").map(PathBuf::from);
    let home = || std::env::home_dir().unwrap_or_else(|| "/root".into());
    named.unwrap_or_else(|| home().join(".cache/taupe"))
}

/// Returns a folder of the cache, which may not exist yet.
pub fn folder(name: &str) -> PathBuf {
    root().join(name)
}

/// Creates a folder of the cache, and locks an entry in it until the result is dropped: another
/// process that builds the same waits.
///
/// # Errors
///
/// [`Error::Io`].
pub fn lock(folder: &Path, entry: &str) -> Result<File> {
    fs::create_dir_all(folder).map_err(Error::io(folder.display().to_string()))?;
    let path = folder.join(format!("{entry}.lock"));
    let file = File::create(&path).map_err(Error::io(path.display().to_string()))?;
    file.lock()
        .map_err(Error::io(format!("lock of {}", path.display())))?;
    Ok(file)
}

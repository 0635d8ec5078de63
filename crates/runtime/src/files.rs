//! Small state files: written atomically, durable, and readable by their owner only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::system::{file_for_owner_only, folder_for_owner_only, sync_folder};

const DEFAULT_DIR: &str = "/var/lib/taupe";

/// Returns the requested folder, or the default.
pub(crate) fn state_dir(dir: Option<&Path>) -> &Path {
    dir.unwrap_or(Path::new(DEFAULT_DIR))
}

/// Creates the folder of the saved state, `dir` or the default, unless it exists. Returns its path.
///
/// # Errors
/// The system's error.
pub fn create_state_dir(dir: Option<&Path>) -> io::Result<PathBuf> {
    let dir = state_dir(dir);
    create_folder(dir)?;
    Ok(dir.to_owned())
}

/// Replaces a file in `dir` by rename, so that a reader never sees a part of it.
pub(crate) fn replace(
    dir: &Path,
    path: &Path,
    write: impl FnOnce(&mut fs::File) -> io::Result<()>,
) -> io::Result<()> {
    create_folder(dir)?;
    let new = path.with_extension("new");
    let mut file = create_file(&new)?;
    write(&mut file)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    sync_folder(dir)
}

/// Creates an empty file in `dir` unless it exists.
pub(crate) fn create(dir: &Path, path: &Path) -> io::Result<()> {
    create_folder(dir)?;
    create_file(path)?;
    // The folder may be new too: sync its parent.
    sync_folder(dir)?;
    dir.parent().map_or(Ok(()), sync_folder)
}

/// Removes a file in `dir`. Returns false if it did not exist.
pub(crate) fn remove(dir: &Path, path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.and_then(|()| sync_folder(dir)).map(|()| true),
    }
}

/// Limit of the number of files in a folder of the saved state. A device whose state another process
/// saves has one. Otherwise code that an attacker runs in the device could fill the disk, also by a few
/// files after each restart.
pub(crate) struct Room {
    /// `None` permits any number. A confined process could not count the files.
    limit: Option<usize>,
    /// Files that exist, since they were counted.
    used: Option<usize>,
}

impl Room {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { limit, used: None }
    }

    /// Returns an error if `path` does not exist and there are too many files already, which `count`
    /// counts.
    pub(crate) fn check(
        &mut self,
        path: &Path,
        count: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<()> {
        let Some(limit) = self.limit.filter(|_| !path.exists()) else {
            return Ok(());
        };
        let used = match self.used {
            Some(used) => used,
            None => count()?,
        };
        if used >= limit {
            return Err(io::Error::other(format!(
                "there are {used} records already, more than Taupe ever needs; delete those of keys \
                 that are not in use"
            )));
        }
        self.used = Some(used + 1);
        Ok(())
    }

    /// Notes that a file was removed.
    pub(crate) fn removed(&mut self) {
        self.used = self.used.map(|used| used.saturating_sub(1));
    }
}

/// Counts the entries of a folder. A folder that does not exist has none.
pub(crate) fn count_entries(dir: &Path) -> io::Result<usize> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        entries => Ok(entries?.count()),
    }
}

fn create_folder(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    folder_for_owner_only(&mut builder);
    match builder.create(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            builder.recursive(true).create(dir)
        }
        // A confined process cannot ask whether it is a folder; if not, opening a file in it fails.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

fn create_file(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    file_for_owner_only(&mut options);
    options.open(path)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses `N` bytes in hex. Returns `None` for any other text.
pub(crate) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

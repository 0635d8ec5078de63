//! The system calls that change `/etc/resolv.conf` and the files beside it, one method each.

use rustix::fs::{AtFlags, CWD, linkat};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Maximum bytes of a file. A `resolv.conf` has a few lines.
const LIMIT: usize = 1 << 20;

/// A system call that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Write,
    Truncate,
    Sync,
    Link,
    Rename,
    Remove,
}

/// Hook of the tests, called before each system call that changes something, with the name that it
/// changes (the new one of two). An error of the hook replaces the call.
pub(super) type Before<'a> = dyn FnMut(Call, &Path) -> io::Result<()> + 'a;

/// Access to the file system.
pub(super) struct Disk<'a> {
    before: &'a mut Before<'a>,
}

impl<'a> Disk<'a> {
    pub(super) fn new(before: &'a mut Before<'a>) -> Self {
        Self { before }
    }

    /// Creates a file with this content and syncs it. Removes an existing file of this name, which
    /// no other program uses.
    pub(super) fn create(&mut self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.remove(path)?;
        (self.before)(Call::Create, path)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(path)?;
        // A restrictive umask must not hide the servers from other users' programs.
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o644))?;
        (self.before)(Call::Write, path)?;
        file.write_all(content)?;
        self.sync(&file, path)
    }

    /// Overwrites an existing file. A reader, even after a kill, sees the old content, the new
    /// content, or the new content followed by empty lines.
    pub(super) fn overwrite(&mut self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        let before = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mut padded = content.to_vec();
        padded.resize(before.min(LIMIT).max(content.len()), b'\n');
        (self.before)(Call::Write, path)?;
        file.write_all(&padded)?;
        (self.before)(Call::Truncate, path)?;
        file.set_len(content.len() as u64)?;
        self.sync(&file, path)
    }

    /// Creates a second name for a file, or for a symbolic link itself.
    pub(super) fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before)(Call::Link, to)?;
        Ok(linkat(CWD, from, CWD, to, AtFlags::empty())?)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before)(Call::Rename, to)?;
        fs::rename(from, to)
    }

    /// Removes a name. Succeeds if it does not exist.
    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        if !exists(path)? {
            return Ok(());
        }
        (self.before)(Call::Remove, path)?;
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync(&mut self, file: &File, path: &Path) -> io::Result<()> {
        (self.before)(Call::Sync, path)?;
        file.sync_all()
    }
}

/// Returns true if the name exists, even if it is a dangling link.
pub(super) fn exists(path: &Path) -> io::Result<bool> {
    Ok(inode(path)?.is_some())
}

/// Returns the device and inode number of a file, or of a symbolic link itself, or `None` if it
/// does not exist.
pub(super) fn inode(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match path.symlink_metadata() {
        Ok(meta) => Ok(Some((meta.dev(), meta.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the content of a file, following links, or `None` if the file does not exist.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.take(LIMIT as u64 + 1).read_to_end(&mut content)?;
    if content.len() > LIMIT {
        return Err(io::Error::other("it is larger than a megabyte"));
    }
    Ok(Some(content))
}

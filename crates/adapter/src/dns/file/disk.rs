//! The system calls that change `/etc/resolv.conf` and its neighbours, one
//! method each.

use rustix::fs::{AtFlags, CWD, linkat};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The largest file that is dealt with, in bytes. A `resolv.conf` is a few lines.
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

/// Asked before each call that changes something, with the name that it is
/// about (the new one of two), and may fail in its place.
pub(super) type Before<'a> = dyn FnMut(Call, &Path) -> io::Result<()> + 'a;

/// The file system.
pub(super) struct Disk<'a> {
    before: &'a mut Before<'a>,
}

impl<'a> Disk<'a> {
    pub(super) fn new(before: &'a mut Before<'a>) -> Self {
        Self { before }
    }

    /// A new file with this content, on disk when this returns. Whatever had
    /// the name is removed: nobody else uses it.
    pub(super) fn create(&mut self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.remove(path)?;
        (self.before)(Call::Create, path)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(path)?;
        // The umask must not hide the servers from those who ask for names.
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o644))?;
        (self.before)(Call::Write, path)?;
        file.write_all(content)?;
        self.sync(&file, path)
    }

    /// Gives an existing file another content. A reader, also after a kill,
    /// sees the old one, the new one, or the new one with empty lines after it.
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

    /// A second name for a file, or for a symbolic link itself.
    pub(super) fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before)(Call::Link, to)?;
        Ok(linkat(CWD, from, CWD, to, AtFlags::empty())?)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before)(Call::Rename, to)?;
        fs::rename(from, to)
    }

    /// Removes a name. One that is not there is removed already.
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

/// Whether there is anything of that name, be it a link to nowhere.
pub(super) fn exists(path: &Path) -> io::Result<bool> {
    Ok(inode(path)?.is_some())
}

/// What tells a file, or a symbolic link itself, from all others: its file
/// system's and its own number. None when it is not there.
pub(super) fn inode(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match path.symlink_metadata() {
        Ok(meta) => Ok(Some((meta.dev(), meta.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The content of a file, through links; none when the file is not there.
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

//! Changing `/etc/resolv.conf` directly, if no program manages it.
//!
//! The present file or symbolic link gets a second name (`link(2)`), and then Taupe's file replaces
//! it (`rename(2)`). Therefore `resolv.conf` exists at any moment, and the original has at least
//! one of the two names whenever the process is killed. A file that is a mount point, as in
//! containers, cannot be replaced, so it is copied and then overwritten. The name of the copy
//! contains the inode's number, because the same `/etc` may show different files in different
//! network namespaces (`ip-netns(8)`).
//!
//! If several tunnels share the file, the servers of the newest one are used. The original is
//! restored with the last tunnel. If another program has replaced the file meanwhile, its file
//! stays.

mod disk;
#[cfg(test)]
mod tests;
mod text;

use super::{DnsError, Note, Paths, Settings};
use disk::{Before, Call, Disk, exists, inode, read};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use text::FileState;

/// The name of the saved original.
pub(super) const ORIGINAL: &str = "resolv.conf.before-taupe";

/// The manager of `/etc/resolv.conf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Taupe,
    SystemdResolved,
    /// Another program, a person, or none.
    Other,
}

/// Determines the manager from the file. If the file is left over from before a restart of the
/// system, uses the saved original.
pub(super) fn owner(paths: &Paths) -> Result<Owner, DnsError> {
    let path = paths.resolv_conf();
    let text = text_of(&path)?;
    let Some(state) = text::parse(&text) else {
        return Ok(owner_of(paths, &path, &text));
    };
    if state.boot == boot(paths) {
        return Ok(Owner::Taupe);
    }
    match state.original.map(|name| paths.beside(&name)) {
        Some(original) => Ok(owner_of(paths, &original, &text_of(&original)?)),
        None => Ok(Owner::Other),
    }
}

/// Sets the servers of an interface.
pub(super) fn apply(paths: &Paths, interface: &str, settings: &Settings) -> Result<(), DnsError> {
    let _lock = lock(paths)?;
    Place::new(paths, &mut |_, _| Ok(())).apply(interface, settings)
}

/// Removes the servers of an interface.
pub(super) fn undo(paths: &Paths, interface: &str) -> Result<Option<Note>, DnsError> {
    let _lock = lock(paths)?;
    Place::new(paths, &mut |_, _| Ok(())).undo(interface)
}

/// Returns the shell command for [`apply`] in the present state.
pub(super) fn line(paths: &Paths, settings: &Settings) -> String {
    let mut before = |_: Call, _: &Path| Ok(());
    let place = Place::new(paths, &mut before);
    match place.look() {
        Ok(Found::Nothing) => writing(settings),
        Ok(Found::Ours(state)) if state.boot == place.boot => writing(settings),
        _ => replacing(settings),
    }
}

/// Returns the shell command for [`undo`] in the present state, if it would change something.
pub(super) fn undo_line(paths: &Paths, interface: &str) -> Option<String> {
    let mut before = |_: Call, _: &Path| Ok(());
    let place = Place::new(paths, &mut before);
    match place.look() {
        Ok(Found::Ours(mut state)) => {
            let before = state.tunnels.len();
            state.remove(interface);
            match (state.tunnels.last(), &state.original) {
                (Some(_), _) if state.tunnels.len() == before => None,
                (Some(newest), _) => Some(writing(&newest.settings)),
                (None, Some(original)) => Some(putting_back(original)),
                (None, None) => Some("rm /etc/resolv.conf".to_owned()),
            }
        }
        Ok(Found::Nothing) if exists(&place.original).unwrap_or(true) => {
            Some(putting_back(ORIGINAL))
        }
        Ok(Found::Nothing | Found::Theirs) => None,
        // `undo` will report the error.
        Err(_) => Some(putting_back(ORIGINAL)),
    }
}

/// Returns the shell command that saves the file and writes one with other servers.
pub(super) fn replacing(settings: &Settings) -> String {
    let writing = writing(settings);
    format!("mv /etc/resolv.conf /etc/{ORIGINAL}; {writing}")
}

/// Returns the shell command that restores the saved file.
pub(super) fn putting_back(original: &str) -> String {
    format!("mv /etc/{original} /etc/resolv.conf")
}

fn writing(settings: &Settings) -> String {
    let servers = settings.listed();
    format!("printf 'nameserver %s\\n' {servers} > /etc/resolv.conf")
}

/// Repairs the file after a killed process or a restart of the system.
pub(super) fn recover(paths: &Paths) -> Result<Option<Note>, DnsError> {
    let mut before = |_: Call, _: &Path| Ok(());
    let mut place = Place::new(paths, &mut before);
    // The usual case: nothing to repair, so no lock is taken.
    let names = [&place.draft, &place.original, &place.copy()?];
    let left = names.into_iter().any(|name| exists(name).unwrap_or(true));
    if !left && !matches!(place.look()?, Found::Ours(_)) {
        return Ok(None);
    }
    let _lock = lock(paths)?;
    place.recover()
}

/// Returns the settings of an interface in the file.
pub(super) fn current(paths: &Paths, interface: &str) -> Result<Option<Settings>, DnsError> {
    let state = text::parse(&text_of(&paths.resolv_conf())?);
    let mut tunnels = state.unwrap_or_default().tunnels.into_iter();
    Ok(tunnels
        .find(|tunnel| tunnel.interface == interface)
        .map(|tunnel| tunnel.settings))
}

/// Compares an interface's servers with the file. Returns `None` if the file is as [`apply`] wrote
/// it, for this interface or a newer tunnel's. Otherwise returns the servers in the file.
pub(super) fn verify(
    paths: &Paths,
    interface: &str,
    settings: &Settings,
) -> Result<Option<Vec<IpAddr>>, DnsError> {
    let text = text_of(&paths.resolv_conf())?;
    let found = text::servers(&text);
    let state = text::parse(&text).filter(|state| state.boot == boot(paths));
    let state = state.unwrap_or_default();
    let is_listed = state
        .tunnels
        .iter()
        .any(|tunnel| tunnel.interface == interface && tunnel.settings == *settings);
    let newest = state.tunnels.last();
    let is_in_force = newest.is_some_and(|newest| newest.settings.servers == found);
    Ok((!(is_listed && is_in_force)).then_some(found))
}

/// Returns the servers in the file, no matter which program wrote it.
pub(super) fn servers(paths: &Paths) -> Result<Vec<IpAddr>, DnsError> {
    Ok(text::servers(&text_of(&paths.resolv_conf())?))
}

fn owner_of(paths: &Paths, path: &Path, text: &str) -> Owner {
    let linked = || {
        let resolved = Path::new("/run/systemd/resolve");
        let target = path.read_link().ok()?;
        // After a symbolic link `..` would mean another folder; such targets are not expected.
        let mut absolute = PathBuf::from("/etc");
        for part in target.components() {
            match part {
                std::path::Component::ParentDir => drop(absolute.pop()),
                part => absolute.push(part),
            }
        }
        let real = path.canonicalize().unwrap_or_default();
        Some(absolute.starts_with(resolved) || real.starts_with(paths.at(resolved)))
    };
    let stub = |line: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some("nameserver")
            && matches!(words.next(), Some("127.0.0.53" | "127.0.0.54"))
    };
    if linked() == Some(true) || text.lines().any(stub) {
        Owner::SystemdResolved
    } else {
        Owner::Other
    }
}

/// Contents of the name `resolv.conf`.
enum Found {
    Nothing,
    /// A file of Taupe.
    Ours(FileState),
    /// Any other file.
    Theirs,
}

/// The names of the files, and the system calls that change them.
struct Place<'a> {
    file: PathBuf,
    /// The saved original.
    original: PathBuf,
    /// A file that is renamed to one of the others next.
    draft: PathBuf,
    boot: String,
    disk: Disk<'a>,
}

impl<'a> Place<'a> {
    fn new(paths: &Paths, before: &'a mut Before<'a>) -> Self {
        Self {
            file: paths.resolv_conf(),
            original: paths.beside(ORIGINAL),
            draft: paths.draft(),
            boot: boot(paths),
            disk: Disk::new(before),
        }
    }

    fn apply(&mut self, interface: &str, settings: &Settings) -> Result<(), DnsError> {
        self.recover()?;
        let done = self.put(interface, settings);
        if done.is_err() {
            // Undo a partial change. The first error is reported.
            let _ = self.undo(interface);
        }
        done
    }

    fn put(&mut self, interface: &str, settings: &Settings) -> Result<(), DnsError> {
        let found = self.look()?;
        if let Found::Ours(mut state) = found {
            state.put(interface, settings);
            return self.rewrite(&state);
        }
        let mut state = FileState {
            boot: self.boot.clone(),
            original: None,
            tunnels: Vec::new(),
        };
        state.put(interface, settings);
        match found {
            Found::Nothing => self.replace(&text::print(&state, "")),
            _ => self.take_over(state),
        }
    }

    fn undo(&mut self, interface: &str) -> Result<Option<Note>, DnsError> {
        let note = self.recover()?;
        match self.look()? {
            Found::Ours(mut state) => {
                let before = state.tunnels.len();
                state.remove(interface);
                if state.tunnels.is_empty() {
                    self.restore(state.original.as_deref())?;
                } else if state.tunnels.len() < before {
                    self.rewrite(&state)?;
                }
                Ok(note)
            }
            Found::Theirs => {
                for original in [self.copy()?, self.original.clone()] {
                    if exists(&original).map_err(reading(&original))? {
                        let path = self.file.clone();
                        return Ok(Some(Note::Replaced { path, original }));
                    }
                }
                Ok(note)
            }
            Found::Nothing => Ok(note),
        }
    }

    fn recover(&mut self) -> Result<Option<Note>, DnsError> {
        self.remove(&self.draft.clone())?;
        match self.look()? {
            Found::Ours(state) if state.boot != self.boot => {
                self.restore(state.original.as_deref())?;
                return Ok(Some(Note::Restarted {
                    path: self.file.clone(),
                }));
            }
            Found::Ours(_) => {}
            Found::Nothing => {
                if exists(&self.original).map_err(reading(&self.original))? {
                    self.restore(Some(ORIGINAL))?;
                }
            }
            // The process was killed before the file was replaced, or after it was restored.
            Found::Theirs => {
                let file = inode(&self.file).map_err(reading(&self.file))?;
                if inode(&self.original).map_err(reading(&self.original))? == file {
                    self.remove(&self.original.clone())?;
                }
                let copy = self.copy()?;
                let copied = read(&copy).map_err(reading(&copy))?;
                let content = read(&self.file).map_err(reading(&self.file))?;
                if let (Some(copied), Some(content)) = (copied, content)
                    && copied.trim_ascii_end() == content.trim_ascii_end()
                {
                    if copied != content {
                        self.overwrite(&copied)?;
                    }
                    self.remove(&copy)?;
                }
            }
        }
        Ok(None)
    }

    fn look(&self) -> Result<Found, DnsError> {
        if !exists(&self.file).map_err(reading(&self.file))? {
            return Ok(Found::Nothing);
        }
        Ok(text::parse(&text_of(&self.file)?).map_or(Found::Theirs, Found::Ours))
    }

    /// Replaces another file with Taupe's.
    fn take_over(&mut self, mut state: FileState) -> Result<(), DnsError> {
        state.original = Some(ORIGINAL.to_owned());
        let text = text::print(&state, &text_of(&self.file)?);
        match self.disk.link(&self.file, &self.draft) {
            // This overwrites a saved original that is older than the present file.
            Ok(()) => self.rename(&self.draft.clone(), &self.original.clone())?,
            // The file is a mount point.
            Err(error) if is(&error, &[Errno::XDEV]) => return self.take_over_mounted(state),
            // The file system has no links, for example vfat. If the code has another cause, the
            // next call fails, too.
            Err(error) if is(&error, &[Errno::PERM, Errno::OPNOTSUPP, Errno::MLINK]) => {
                self.rename(&self.file.clone(), &self.original.clone())?;
            }
            Err(error) => return Err(changing(&self.file)(error)),
        }
        self.replace(&text)
    }

    /// Like [`Self::take_over`], for a file that is a mount point: copies it, then overwrites it.
    fn take_over_mounted(&mut self, mut state: FileState) -> Result<(), DnsError> {
        let copy = self.copy()?;
        let name = copy.file_name().unwrap_or_default();
        state.original = Some(name.to_string_lossy().into_owned());
        let content = read(&self.file).map_err(reading(&self.file))?;
        let created = self.disk.create(&self.draft, &content.unwrap_or_default());
        created.map_err(changing(&copy))?;
        self.rename(&self.draft.clone(), &copy)?;
        let text = text::print(&state, &text_of(&copy)?);
        self.overwrite(text.as_bytes())
    }

    /// Replaces Taupe's file with another version.
    fn rewrite(&mut self, state: &FileState) -> Result<(), DnsError> {
        let original = match &state.original {
            Some(name) => text_of(&self.file.with_file_name(name))?,
            None => String::new(),
        };
        self.replace(&text::print(state, &original))
    }

    /// Restores the original.
    fn restore(&mut self, original: Option<&str>) -> Result<(), DnsError> {
        let Some(name) = original else {
            return self.remove(&self.file.clone());
        };
        let original = self.file.with_file_name(name);
        match self.disk.rename(&original, &self.file) {
            Err(error) if is(&error, &[Errno::NOENT]) => Err(DnsError::OriginalGone {
                path: self.file.clone(),
                original,
            }),
            Err(error) if is(&error, &[Errno::BUSY]) => {
                let content = read(&original).map_err(reading(&original))?;
                self.overwrite(&content.unwrap_or_default())?;
                self.remove(&original)
            }
            done => done.map_err(changing(&self.file)),
        }
    }

    /// Writes the text to the file, replacing the present one if there is one.
    fn replace(&mut self, text: &str) -> Result<(), DnsError> {
        let created = self.disk.create(&self.draft, text.as_bytes());
        created.map_err(changing(&self.file))?;
        match self.disk.rename(&self.draft, &self.file) {
            Err(error) if is(&error, &[Errno::BUSY]) => {
                self.overwrite(text.as_bytes())?;
                self.remove(&self.draft.clone())
            }
            done => done.map_err(changing(&self.file)),
        }
    }

    fn overwrite(&mut self, content: &[u8]) -> Result<(), DnsError> {
        let done = self.disk.overwrite(&self.file, content);
        done.map_err(changing(&self.file))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<(), DnsError> {
        self.disk.rename(from, to).map_err(changing(&self.file))
    }

    fn remove(&mut self, path: &Path) -> Result<(), DnsError> {
        self.disk.remove(path).map_err(changing(path))
    }

    /// Returns the name of the copy of a mounted file.
    fn copy(&self) -> Result<PathBuf, DnsError> {
        let inode = inode(&self.file).map_err(reading(&self.file))?;
        let (_, number) = inode.unwrap_or_default();
        Ok(self.file.with_file_name(format!("{ORIGINAL}.{number}")))
    }
}

/// Returns the text of a file; empty if it does not exist.
fn text_of(path: &Path) -> Result<String, DnsError> {
    let content = read(path).map_err(reading(path))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn boot(paths: &Paths) -> String {
    let id = std::fs::read_to_string(paths.at("/proc/sys/kernel/random/boot_id"));
    id.unwrap_or_default().trim().to_owned()
}

/// The lock for changing the file. Dropping it removes the lock file.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked, so no other process has locked this file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Locks the file, because several tunnels share it.
fn lock(paths: &Paths) -> Result<Lock, DnsError> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    const LIMIT: Duration = Duration::from_secs(5);
    let path = paths.lock();
    if let Some(folder) = path.parent() {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(folder);
        made.map_err(changing(folder))?;
    }
    let start = Instant::now();
    loop {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(&path);
        let file = file.map_err(changing(&path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Otherwise the previous owner has removed the lock file meanwhile.
            Ok(()) if is_at(&file, &path) => return Ok(Lock { path, _file: file }),
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) if start.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::WOULDBLOCK) => return Err(DnsError::Locked { path }),
            Err(error) => return Err(changing(&path)(error.into())),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let locked = file.metadata().map(|meta| (meta.dev(), meta.ino()));
    locked.is_ok_and(|locked| inode(path).is_ok_and(|named| named == Some(locked)))
}

fn is(error: &io::Error, codes: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|code| codes.contains(&code))
}

fn reading(path: &Path) -> impl FnOnce(io::Error) -> DnsError + use<> {
    let path = path.to_owned();
    |source| DnsError::Read { path, source }
}

fn changing(path: &Path) -> impl FnOnce(io::Error) -> DnsError + use<> {
    let path = path.to_owned();
    move |source| DnsError::Change {
        remedy: remedy(&path, &source),
        path,
        source,
    }
}

/// Returns advice for the user about a failed call.
fn remedy(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match Errno::from_io_error(error) {
        Some(Errno::ROFS) => "its file system is read-only: make it writable, or take DNS out of \
             the tunnel's file and set the name servers yourself"
            .to_owned(),
        Some(Errno::PERM) => format!(
            "it may be immutable (`lsattr {path}` shows an i or a): `chattr -i -a {path}` allows \
             changes; or take DNS out of the tunnel's file"
        ),
        Some(Errno::ACCESS) => "run this as root".to_owned(),
        Some(Errno::NOSPC | Errno::DQUOT) => "free some space on its file system".to_owned(),
        Some(Errno::NOENT) => "make its folder".to_owned(),
        _ => "mend that, or take DNS out of the tunnel's file".to_owned(),
    }
}

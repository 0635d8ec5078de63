//! `/etc/resolv.conf` itself, where nothing manages it.
//!
//! What is there, be it a file or a symbolic link, gets a second name
//! (`link(2)`), then Taupe's file replaces it (`rename(2)`): there is a
//! `resolv.conf` at any moment, and what it was has at least one of the two
//! names, whenever the process is killed. A file that cannot be replaced,
//! because it is mounted from elsewhere as in containers, is copied and then
//! overwritten. Its copy has its inode's number in its name: the same `/etc`
//! may show different files to different network namespaces (`ip-netns(8)`).
//!
//! Several tunnels share the file: the newest one's servers are in force, and
//! the original comes back with the last. What was in the file when another
//! program has replaced it meanwhile is that program's: it stays.

mod disk;
#[cfg(test)]
mod tests;
mod text;

use super::{Error, Note, Paths, Settings};
use disk::{Before, Call, Disk, exists, inode, read};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use text::FileState;

/// What was at the name `resolv.conf` before.
pub(super) const ORIGINAL: &str = "resolv.conf.before-taupe";

/// Who decides what is in `/etc/resolv.conf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Taupe,
    SystemdResolved,
    /// Another program, a person, or nobody.
    Other,
}

/// Looks at the file; at the one that comes back if a restart of the system has
/// left Taupe's.
pub(super) fn owner(paths: &Paths) -> Result<Owner, Error> {
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
pub(super) fn apply(paths: &Paths, interface: &str, settings: &Settings) -> Result<(), Error> {
    let _lock = lock(paths)?;
    Place::new(paths, &mut |_, _| Ok(())).apply(interface, settings)
}

/// Takes them back.
pub(super) fn undo(paths: &Paths, interface: &str) -> Result<Option<Note>, Error> {
    let _lock = lock(paths)?;
    Place::new(paths, &mut |_, _| Ok(())).undo(interface)
}

/// What [`apply`] is about to do, as a shell would.
pub(super) fn line(paths: &Paths, settings: &Settings) -> String {
    let mut before = |_: Call, _: &Path| Ok(());
    let place = Place::new(paths, &mut before);
    match place.look() {
        Ok(Found::Nothing) => writing(settings),
        Ok(Found::Ours(state)) if state.boot == place.boot => writing(settings),
        _ => replacing(settings),
    }
}

/// What [`undo`] is about to do, as a shell would, if anything.
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
        // It will be said why.
        Err(_) => Some(putting_back(ORIGINAL)),
    }
}

/// The line of a shell that puts servers in the place of a file that is kept.
pub(super) fn replacing(settings: &Settings) -> String {
    let writing = writing(settings);
    format!("mv /etc/resolv.conf /etc/{ORIGINAL}; {writing}")
}

/// The line of a shell that puts back what was replaced.
pub(super) fn putting_back(original: &str) -> String {
    format!("mv /etc/{original} /etc/resolv.conf")
}

fn writing(settings: &Settings) -> String {
    let servers = settings.listed();
    format!("printf 'nameserver %s\\n' {servers} > /etc/resolv.conf")
}

/// Puts right what a killed process or a restart of the system has left.
pub(super) fn recover(paths: &Paths) -> Result<Option<Note>, Error> {
    let mut before = |_: Call, _: &Path| Ok(());
    let mut place = Place::new(paths, &mut before);
    // Mostly there is nothing, and no lock to be made for it.
    let names = [&place.draft, &place.original, &place.copy()?];
    let left = names.into_iter().any(|name| exists(name).unwrap_or(true));
    if !left && !matches!(place.look()?, Found::Ours(_)) {
        return Ok(None);
    }
    let _lock = lock(paths)?;
    place.recover()
}

/// What this file says of an interface.
pub(super) fn current(paths: &Paths, interface: &str) -> Result<Option<Settings>, Error> {
    let state = text::parse(&text_of(&paths.resolv_conf())?);
    let mut tunnels = state.unwrap_or_default().tunnels.into_iter();
    Ok(tunnels
        .find(|tunnel| tunnel.interface == interface)
        .map(|tunnel| tunnel.settings))
}

/// Compares an interface's servers with those in force: `None` when the file is
/// as [`apply`] has written it, for this interface or for a later one's sake.
/// Otherwise the servers in it.
pub(super) fn verify(
    paths: &Paths,
    interface: &str,
    settings: &Settings,
) -> Result<Option<Vec<IpAddr>>, Error> {
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

/// The servers in the file, whoever wrote it.
pub(super) fn servers(paths: &Paths) -> Result<Vec<IpAddr>, Error> {
    Ok(text::servers(&text_of(&paths.resolv_conf())?))
}

fn owner_of(paths: &Paths, path: &Path, text: &str) -> Owner {
    let linked = || {
        let resolved = Path::new("/run/systemd/resolve");
        let target = path.read_link().ok()?;
        // `..` before a link means something else, but nobody links like that.
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

/// What is at the name `resolv.conf`.
enum Found {
    Nothing,
    /// A file of Taupe's.
    Ours(FileState),
    /// Anything else.
    Theirs,
}

/// The names of the files, and the calls that change them.
struct Place<'a> {
    file: PathBuf,
    /// What has been replaced.
    original: PathBuf,
    /// What is about to get another name.
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

    fn apply(&mut self, interface: &str, settings: &Settings) -> Result<(), Error> {
        self.recover()?;
        let done = self.put(interface, settings);
        if done.is_err() {
            // Whatever has been done of it. The error to tell is the first one.
            let _ = self.undo(interface);
        }
        done
    }

    fn put(&mut self, interface: &str, settings: &Settings) -> Result<(), Error> {
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

    fn undo(&mut self, interface: &str) -> Result<Option<Note>, Error> {
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

    fn recover(&mut self) -> Result<Option<Note>, Error> {
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
            // Killed before anything was replaced, or after it was put back.
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

    fn look(&self) -> Result<Found, Error> {
        if !exists(&self.file).map_err(reading(&self.file))? {
            return Ok(Found::Nothing);
        }
        Ok(text::parse(&text_of(&self.file)?).map_or(Found::Theirs, Found::Ours))
    }

    /// Puts Taupe's file in the place of another.
    fn take_over(&mut self, mut state: FileState) -> Result<(), Error> {
        state.original = Some(ORIGINAL.to_owned());
        let text = text::print(&state, &text_of(&self.file)?);
        match self.disk.link(&self.file, &self.draft) {
            // This replaces an original that is older than the file that is
            // there now.
            Ok(()) => self.rename(&self.draft.clone(), &self.original.clone())?,
            // Mounted from elsewhere.
            Err(error) if is(&error, &[Errno::XDEV]) => return self.take_over_mounted(state),
            // A file system without links, such as vfat. What else the code
            // may stand for, the next call has as well.
            Err(error) if is(&error, &[Errno::PERM, Errno::OPNOTSUPP, Errno::MLINK]) => {
                self.rename(&self.file.clone(), &self.original.clone())?;
            }
            Err(error) => return Err(changing(&self.file)(error)),
        }
        self.replace(&text)
    }

    /// The same for a file that another is mounted on: it is copied, then
    /// overwritten.
    fn take_over_mounted(&mut self, mut state: FileState) -> Result<(), Error> {
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

    /// Puts another file of Taupe's in the place of the one that is there.
    fn rewrite(&mut self, state: &FileState) -> Result<(), Error> {
        let original = match &state.original {
            Some(name) => text_of(&self.file.with_file_name(name))?,
            None => String::new(),
        };
        self.replace(&text::print(state, &original))
    }

    /// Puts the original back.
    fn restore(&mut self, original: Option<&str>) -> Result<(), Error> {
        let Some(name) = original else {
            return self.remove(&self.file.clone());
        };
        let original = self.file.with_file_name(name);
        match self.disk.rename(&original, &self.file) {
            Err(error) if is(&error, &[Errno::NOENT]) => Err(Error::OriginalGone {
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

    /// Puts this text in the place of what is there, if anything.
    fn replace(&mut self, text: &str) -> Result<(), Error> {
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

    fn overwrite(&mut self, content: &[u8]) -> Result<(), Error> {
        let done = self.disk.overwrite(&self.file, content);
        done.map_err(changing(&self.file))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<(), Error> {
        self.disk.rename(from, to).map_err(changing(&self.file))
    }

    fn remove(&mut self, path: &Path) -> Result<(), Error> {
        self.disk.remove(path).map_err(changing(path))
    }

    /// Where the copy of a mounted file is.
    fn copy(&self) -> Result<PathBuf, Error> {
        let inode = inode(&self.file).map_err(reading(&self.file))?;
        let (_, number) = inode.unwrap_or_default();
        Ok(self.file.with_file_name(format!("{ORIGINAL}.{number}")))
    }
}

/// The text of a file, empty when there is none.
fn text_of(path: &Path) -> Result<String, Error> {
    let content = read(path).map_err(reading(path))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn boot(paths: &Paths) -> String {
    let id = std::fs::read_to_string(paths.at("/proc/sys/kernel/random/boot_id"));
    id.unwrap_or_default().trim().to_owned()
}

/// The right to change the file. Its own file goes with it.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked, so that nobody else has locked this very file since.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One process at a time: several tunnels share the file.
fn lock(paths: &Paths) -> Result<Lock, Error> {
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
            // Otherwise whoever held it has removed it meanwhile.
            Ok(()) if is_at(&file, &path) => return Ok(Lock { path, _file: file }),
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) if start.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::WOULDBLOCK) => return Err(Error::Locked { path }),
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

fn reading(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    |source| Error::Read { path, source }
}

fn changing(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Change {
        remedy: remedy(&path, &source),
        path,
        source,
    }
}

/// What a person can do about a call that failed.
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

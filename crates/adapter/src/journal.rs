//! What has been done, on disk before it is done, so that it can be undone by
//! a process that knows nothing else.
//!
//! A journal is lines of JSON: a header, then records. It is in memory only
//! (`/run` is a tmpfs), so that a reboot, which undoes everything else, takes
//! it too; nothing is fsynced. A line that was cut off by the end of its writer
//! is a step that was not begun.

mod error;
mod header;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use error::Error;
pub use header::Header;
use header::{AnyHeader, Seen, VERSION};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::Request;
use crate::change::Change;
use crate::identity::{Place, Socket};
use crate::last_state::LastState;
use crate::namespace::Namespace;

/// Where journals are.
pub const DIRECTORY: &str = "/run/taupe";

/// Between two looks at a lock that another process holds.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a tunnel waits for others that are being brought up.
const TURN: Duration = Duration::from_secs(60);

/// The folder of the journals.
#[derive(Clone, Debug)]
pub struct State {
    directory: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    /// The step of this number is about to be done.
    Do(usize, Change),
    /// It has been undone.
    Undone(usize),
    /// The device's interface has this index.
    Interface(u32),
    /// A command of the file has changed what the step of this number made.
    Altered(usize),
    /// The device's process has this configuration socket.
    Socket(Socket),
    /// What the device is, before commands of the file are run.
    Device(LastState),
    /// Everything has been done.
    Complete,
    /// The file was saved.
    Saved(Option<Seen>),
}

impl Default for State {
    fn default() -> Self {
        Self::at(DIRECTORY)
    }
}

impl State {
    /// Journals in another folder than [`DIRECTORY`].
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// Makes this process the only one that may change `interface`, until the
    /// lock is dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] when another process is at it for longer than `patience`.
    pub fn lock(&self, interface: &str, patience: Duration) -> Result<Lock, Error> {
        let end = Instant::now() + patience;
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory);
        made.map_err(failed("make the folder", &self.directory))?;
        let path = self.lock_path(interface);
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.mode(0o600).open(&path);
            let mut file = file.map_err(failed("open", &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let holder = fs::read_to_string(&path).unwrap_or_default();
                    return Err(Error::Busy {
                        interface: interface.to_owned(),
                        process: holder.trim().parse().ok(),
                    });
                }
                Err(error) => return Err(failed("lock", &path)(error.into())),
            }
            // Whoever held it removed the file: then another one may have been
            // locked by its name meanwhile.
            if !is_at(&file, &path) {
                continue;
            }
            // Only for the message of who comes second.
            let _ = file
                .set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            return Ok(Lock {
                path,
                _file: file,
                journal: self.journal(interface),
            });
        }
    }

    /// Waits until no other process is between looking at the network and having
    /// changed it: what each chooses (a table, the priorities of rules, what to
    /// leave out) depends on what the others have done.
    ///
    /// # Errors
    /// [`Error::Crowded`] when that takes longer than a minute, or `is_over`.
    pub(crate) fn turn(&self, is_over: &dyn Fn() -> bool) -> Result<Turn, Error> {
        let end = Instant::now() + TURN;
        // The folder itself: a file in it would be left behind.
        let path = &self.directory;
        let file = File::open(path).map_err(failed("open", path))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Turn(file)),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end && !is_over() => {
                    std::thread::sleep(PAUSE);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::Crowded(path.clone())),
                Err(error) => return Err(failed("lock", path)(error.into())),
            }
        }
    }

    /// What the journals of other interfaces of a network namespace say. Those
    /// that cannot be read are left out.
    pub(crate) fn others(&self, interface: &str, namespace: &Namespace) -> Vec<Change> {
        let others = self.journals(namespace);
        let others = others.filter(|said| said.header.interface != interface);
        others
            .flat_map(|said| said.steps.into_iter().flatten())
            .collect()
    }

    /// How the tunnels of this network namespace were made that have not been taken
    /// down, whether or not their processes still run.
    #[must_use]
    pub fn here(&self) -> Vec<Header> {
        let namespace = Namespace::current();
        let mut here: Vec<_> = self.journals(&namespace).map(|said| said.header).collect();
        here.sort_by(|a, b| a.interface.cmp(&b.interface));
        here
    }

    /// All journals of a network namespace that can be read.
    fn journals(&self, namespace: &Namespace) -> impl Iterator<Item = Said> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let paths = entries.flatten().map(|entry| entry.path());
        paths
            .filter(|path| path.extension().is_some_and(|e| e == "journal"))
            .filter_map(|path| {
                let text = fs::read(&path).ok()?;
                Said::read(&path, whole_lines(&text)).ok().flatten()
            })
            .filter(move |said| said.header.namespace == *namespace)
    }

    /// How the tunnel that is up on this interface was made, without waiting
    /// for who changes it. `None` when `up` has not made it, or in another
    /// network namespace, or is not done yet.
    #[must_use]
    pub fn of_running(&self, interface: &str) -> Option<Header> {
        let path = self.journal(interface);
        let said = Said::read(&path, whole_lines(&fs::read(&path).ok()?));
        let said = said.ok().flatten()?;
        said.is_running(interface).then_some(said.header)
    }

    /// The place of the interface of a tunnel that is up. `None` as with
    /// [`State::of_running`].
    #[must_use]
    pub fn place(&self, interface: &str) -> Option<Place> {
        let (_, index) = self.applied(interface)?;
        if taupe_sys::interface::index(interface) == Some(index) {
            return Some(Place::Here);
        }
        let name = taupe_sys::interface::name(index);
        Some(name.map_or(Place::Elsewhere, Place::Renamed))
    }

    /// The changes of a tunnel that is up on this interface that are to be as they
    /// were made, and the interface's index. `None` as with [`State::of_running`].
    pub(crate) fn applied(&self, interface: &str) -> Option<(Vec<(usize, Change)>, u32)> {
        let path = self.journal(interface);
        let said = Said::read(&path, whole_lines(&fs::read(&path).ok()?));
        let said = said.ok().flatten()?;
        let index = said.interface.filter(|_| said.is_running(interface))?;
        Some((said.applied(), index))
    }

    /// Whether a process is bringing this tunnel up or down, or reloads it.
    pub(crate) fn is_changing(&self, interface: &str) -> bool {
        let lock = File::open(self.lock_path(interface));
        lock.is_ok_and(|lock| {
            let locked = flock(&lock, FlockOperation::NonBlockingLockShared);
            locked == Err(rustix::io::Errno::WOULDBLOCK)
        })
    }

    /// Whether `up` has begun to make this tunnel, and `down` has not ended it.
    #[must_use]
    pub fn is_begun(&self, interface: &str) -> bool {
        self.journal(interface).exists()
    }

    /// The tunnels of this network namespace that were brought up, and whose
    /// process has been killed since.
    #[must_use]
    pub fn killed(&self) -> Vec<String> {
        let here = Namespace::current();
        let complete = self.journals(&here).filter(|said| said.complete);
        let killed = complete.filter(|said| {
            let name = &said.header.interface;
            taupe_sys::interface::index(name).is_none() && !said.lives(name)
        });
        let mut names: Vec<_> = killed.map(|said| said.header.interface).collect();
        names.sort();
        names
    }

    fn lock_path(&self, interface: &str) -> PathBuf {
        self.directory.join(format!("{interface}.lock"))
    }

    fn journal(&self, interface: &str) -> PathBuf {
        self.directory.join(format!("{interface}.journal"))
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    let locked = file.metadata().map(identity);
    let named = fs::metadata(path).map(identity);
    matches!((locked, named), (Ok(locked), Ok(named)) if locked == named)
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// The right to look at the network and to change it by what was seen.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "unlocked when it is closed")] File);

/// The right to change an interface.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
    journal: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked, so that nobody else has locked this very file since.
        let _ = fs::remove_file(&self.path);
    }
}

impl Lock {
    /// Where the interface's journal is.
    pub(crate) fn journal_path(&self) -> &Path {
        &self.journal
    }

    /// The interface's journal; `None` when nothing has been done.
    ///
    /// # Errors
    /// See [enum@Error].
    pub fn journal(&self) -> Result<Option<Journal>, Error> {
        Journal::open(&self.journal)
    }

    /// Begins a journal.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(&self, header: Header) -> Result<Journal, Error> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create_new(true).mode(0o600);
        let file = file.open(&self.journal);
        let mut journal = Journal {
            path: self.journal.clone(),
            file: file.map_err(failed("make", &self.journal))?,
            said: Said::new(header),
        };
        let begun = line(journal.header()).and_then(|line| journal.file.write_all(&line));
        if let Err(error) = begun {
            let _ = fs::remove_file(&journal.path);
            return Err(failed("write", &journal.path)(error));
        }
        Ok(journal)
    }
}

/// What has been done to bring a tunnel up.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    said: Said,
}

/// What a journal says.
#[derive(Debug)]
struct Said {
    header: Header,
    /// By number; `None` when undone.
    steps: Vec<Option<Change>>,
    /// The numbers of those that a command of the file has changed.
    altered: BTreeSet<usize>,
    interface: Option<u32>,
    socket: Option<Socket>,
    device: Option<LastState>,
    complete: bool,
}

impl Journal {
    /// Where it begins.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.said.header
    }

    /// The index of the device's interface, once it was known.
    #[must_use]
    pub fn interface(&self) -> Option<u32> {
        self.said.interface
    }

    /// The configuration socket of the device's process, once it was known.
    pub(crate) fn socket(&self) -> Option<Socket> {
        self.said.socket
    }

    /// Whether everything was done that was to be done.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.said.complete
    }

    /// What has been done, or begun, and not been undone; with its number.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = (usize, &Change)> {
        let steps = self.said.steps.iter().enumerate();
        steps.filter_map(|(number, change)| Some((number, change.as_ref()?)))
    }

    /// The changes that are to be as they were made: all but those that a command
    /// of the file has changed.
    pub(crate) fn applied(&self) -> Vec<(usize, Change)> {
        self.said.applied()
    }

    /// The number of the next step.
    pub(crate) fn next(&self) -> usize {
        self.said.steps.len()
    }

    /// Writes down a step that is about to be done.
    pub(crate) fn record(&mut self, change: &Change) -> Result<(), Error> {
        let number = self.said.steps.len();
        self.write(Record::Do(number, change.clone()))
    }

    pub(crate) fn undone(&mut self, number: usize) -> Result<(), Error> {
        self.write(Record::Undone(number))
    }

    pub(crate) fn has_interface(&mut self, index: u32) -> Result<(), Error> {
        self.write(Record::Interface(index))
    }

    pub(crate) fn has_socket(&mut self, socket: Socket) -> Result<(), Error> {
        self.write(Record::Socket(socket))
    }

    /// Notes that a command of the file has changed what a step made: from now on
    /// that is as the file's owner wants it.
    pub(crate) fn altered(&mut self, number: usize) -> Result<(), Error> {
        self.write(Record::Altered(number))
    }

    /// Writes down what the device is.
    pub(crate) fn has_device(&mut self, state: LastState) -> Result<(), Error> {
        self.write(Record::Device(state))
    }

    /// The device as it was last written down.
    pub(crate) fn device(&self) -> Option<&LastState> {
        self.said.device.as_ref()
    }

    pub(crate) fn completed(&mut self) -> Result<(), Error> {
        self.write(Record::Complete)
    }

    /// `file` is what the tunnel is now, if it is what the tunnel was made from.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn saved(&mut self, file: &Path) -> Result<(), Error> {
        if self.header().config != file {
            return Ok(());
        }
        self.write(Record::Saved(Seen::of(file)))
    }

    /// Writes it anew, without what has been undone, for a file that has
    /// changed since.
    pub(crate) fn rewrite(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let header = Header {
            since: self.header().since,
            outer_seen: self.header().outer_seen,
            ..Header::new(request, self.header().namespace.clone())
        };
        let draft = self.path.with_extension("journal-draft");
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let file = options.open(&draft).map_err(failed("make", &draft))?;
        file.set_len(0).map_err(failed("write", &draft))?;
        let mut anew = Self {
            path: draft,
            file,
            said: Said::new(header),
        };
        let written = line(anew.header()).and_then(|line| anew.file.write_all(&line));
        written.map_err(failed("write", &anew.path))?;
        for (number, change) in self.changes() {
            let altered = self.said.altered.contains(&number);
            let number = anew.next();
            anew.record(change)?;
            if altered {
                anew.altered(number)?;
            }
        }
        if let Some(index) = self.interface() {
            anew.has_interface(index)?;
        }
        if let Some(socket) = self.socket() {
            anew.has_socket(socket)?;
        }
        if let Some(state) = self.device() {
            anew.has_device(state.clone())?;
        }
        anew.completed()?;
        fs::rename(&anew.path, &self.path).map_err(failed("replace", &self.path))?;
        anew.path.clone_from(&self.path);
        *self = anew;
        Ok(())
    }

    /// Ends it: everything has been undone.
    pub(crate) fn remove(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(failed("remove", &self.path))
    }

    fn write(&mut self, record: Record) -> Result<(), Error> {
        let written = line(&record).and_then(|line| {
            let before = self.file.metadata()?.len();
            // What is appended next must not continue half a line.
            self.file
                .write_all(&line)
                .inspect_err(|_| drop(self.file.set_len(before)))
        });
        written.map_err(failed("write", &self.path))?;
        // It is one of ours, numbered from what has been said.
        let _ = self.said.hear(record);
        Ok(())
    }

    fn open(path: &Path) -> Result<Option<Self>, Error> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", path)(error)),
        };
        let whole = whole_lines(&text);
        let Some(said) = Said::read(path, whole)? else {
            fs::remove_file(path).map_err(failed("remove", path))?;
            return Ok(None);
        };
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(failed("open", path))?;
        // What is appended must not continue the line that was cut off.
        let length = u64::try_from(whole.len()).unwrap_or(u64::MAX);
        file.set_len(length).map_err(failed("write", path))?;
        let path = path.to_owned();
        Ok(Some(Self { path, file, said }))
    }
}

impl Said {
    fn new(header: Header) -> Self {
        Self {
            header,
            steps: Vec::new(),
            altered: BTreeSet::new(),
            interface: None,
            socket: None,
            device: None,
            complete: false,
        }
    }

    /// `None` when the writer ended before it did anything.
    fn read(path: &Path, whole: &[u8]) -> Result<Option<Self>, Error> {
        let malformed = |index: usize, reason: &dyn std::fmt::Display| Error::Malformed {
            path: path.to_owned(),
            line: index + 1,
            reason: reason.to_string(),
        };
        let mut lines = whole.split(|byte| *byte == b'\n').enumerate();
        let (_, header) = lines.next().unwrap_or_default();
        if header.is_empty() {
            return Ok(None);
        }
        let found: AnyHeader = serde_json::from_slice(header).map_err(|e| malformed(0, &e))?;
        if found.version != VERSION {
            return Err(Error::Version {
                path: path.to_owned(),
                found: found.version,
            });
        }
        let mut said = Self::new(serde_json::from_slice(header).map_err(|e| malformed(0, &e))?);
        for (index, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let record = serde_json::from_slice(line).map_err(|e| malformed(index, &e))?;
            said.hear(record).map_err(|e| malformed(index, &e))?;
        }
        Ok(Some(said))
    }

    /// Whether the tunnel was brought up here, and its device is there.
    fn is_running(&self, interface: &str) -> bool {
        self.complete
            && self.header.namespace == Namespace::current()
            && self.interface.is_some()
            && (self.interface == taupe_sys::interface::index(interface) || self.lives(interface))
    }

    /// Whether the device's process is there, whatever its interface is called.
    fn lives(&self, interface: &str) -> bool {
        self.socket.is_some_and(|socket| socket.lives(interface))
    }

    fn applied(&self) -> Vec<(usize, Change)> {
        let steps = self.steps.iter().enumerate();
        steps
            .filter(|(number, _)| !self.altered.contains(number))
            .filter_map(|(number, change)| Some((number, change.clone()?)))
            .collect()
    }

    fn hear(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Do(number, change) if number == self.steps.len() => {
                self.steps.push(Some(change));
            }
            Record::Do(number, _) => {
                let expected = self.steps.len();
                return Err(format!("step {number} where step {expected} should be"));
            }
            Record::Undone(number) => match self.steps.get_mut(number) {
                Some(step) => *step = None,
                None => return Err(format!("there is no step {number}")),
            },
            Record::Interface(index) => self.interface = Some(index),
            Record::Socket(socket) => self.socket = Some(socket),
            Record::Altered(number) => drop(self.altered.insert(number)),
            Record::Device(state) => self.device = Some(state),
            Record::Complete => self.complete = true,
            Record::Saved(seen) => self.header.seen = seen,
        }
        Ok(())
    }
}

/// Without the line that was cut off by the end of its writer.
fn whole_lines(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte == b'\n');
    end.and_then(|end| text.get(..=end)).unwrap_or_default()
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests;

//! The journal: the changes that outlive the device, each recorded on disk before it is made, so that
//! a process that knows nothing else can undo it.
//!
//! Routes into the tunnel and addresses end with the device and are not recorded. A journal consists
//! of lines of JSON: a header, then records. Each is written to the disk before the change is made.
//! An incomplete last line is a change that was not begun.
//!
//! A restart of the machine undoes routes, and FreeBSD empties /var/run, where `resolvconf` has the
//! tunnel's name servers. macOS keeps the settings of network services, so they are restored from the
//! journal of an earlier boot, too.

mod boot;
mod lock;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use boot::BootId;
pub use lock::{Lock, Store};

use crate::device::DeviceInterface;
use crate::route::TunnelRoute;
use crate::snapshot::NetworkService;

/// The version of the format.
const VERSION: u32 = 1;

/// The longest journal in bytes: that of hundreds of thousands of endpoints.
const LONGEST: u64 = 64 << 20;

/// Number of undone changes above which a journal is written anew. A peer can change its endpoint as
/// often as it likes.
const MOST_UNDONE: usize = 256;

/// A change that outlives the device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastingChange {
    /// A route through another interface, or one that refuses packets.
    Route(TunnelRoute),
    /// FreeBSD: the name servers of this device.
    Resolvconf(String),
    /// macOS: a network service, with the settings that it had before.
    Service(NetworkService),
}

/// The first line of a journal. The process that writes it is the tunnel's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    version: u32,
    /// The boot during which `up` began.
    pub boot: BootId,
    /// The process of the tunnel.
    process: u32,
    /// FreeBSD: the FIB of that process, in which its routes are.
    pub fib: u32,
    /// The path of the file.
    pub config: PathBuf,
    /// The commands of PostDown, which `down` runs if the file is gone.
    pub post_down: Vec<String>,
}

impl Header {
    /// Returns the header of a new journal.
    #[must_use]
    pub fn new(boot: BootId, fib: u32, config: &Path, post_down: &[String]) -> Self {
        Self {
            version: VERSION,
            boot,
            process: std::process::id(),
            fib,
            config: config.to_owned(),
            post_down: post_down.to_vec(),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    /// The change with this number is about to be made.
    Do(usize, LastingChange),
    /// The change was undone.
    Undone(usize),
    /// The device is about to be created.
    Begun,
    /// The device's interface.
    Device(DeviceInterface),
    /// `up` was completed.
    Complete,
}

/// Error of the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A file cannot be accessed.
    #[error("cannot {what} {}: {source}; the changes of a tunnel are recorded there", .path.display())]
    Io {
        /// The attempt, as a verb and its object.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process is changing the tunnel.
    #[error("{0} is being brought up or down by another process; wait for it")]
    Busy(String),
    /// Another version of Taupe wrote the journal.
    #[error(
        "{} was written by another version of taupe (format {found}, this one knows {VERSION}); \
         take the tunnel down with that version", .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version of its format.
        found: u32,
    },
    /// The file is not a journal.
    #[error("{}, line {line}: not a record of a change of the tunnel ({reason}); remove the file", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The error in it.
        reason: String,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    move |source| JournalError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// The changes of a tunnel that outlive its device.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    header: Header,
    /// The changes by number; `None` if undone.
    changes: Vec<Option<LastingChange>>,
    device: Option<DeviceInterface>,
    is_complete: bool,
}

impl Journal {
    /// Returns the header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns true if this process is the tunnel's. The next tunnel of the same name may be up
    /// already when a process ends.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.header.process == std::process::id()
    }

    /// Returns the device's interface, if it was created.
    #[must_use]
    pub const fn device(&self) -> Option<&DeviceInterface> {
        self.device.as_ref()
    }

    /// Returns true if `up` was completed.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the changes that were begun or made and not undone, with their numbers.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = (usize, &LastingChange)> {
        let changes = self.changes.iter().enumerate();
        changes.filter_map(|(number, change)| Some((number, change.as_ref()?)))
    }

    /// Returns the number of a change.
    pub(crate) fn number_of(&self, change: &LastingChange) -> Option<usize> {
        let mut changes = self.changes();
        changes
            .find(|(_, it)| *it == change)
            .map(|(number, _)| number)
    }

    /// Records a change that is about to be made, and returns its number.
    pub(crate) fn record(&mut self, change: LastingChange) -> Result<usize, JournalError> {
        let number = self.changes.len();
        self.write(&Record::Do(number, change.clone()))?;
        self.changes.push(Some(change));
        Ok(number)
    }

    /// Records that a change was undone. After an error, this copy in memory still knows it.
    pub(crate) fn undone(&mut self, number: usize) -> Result<(), JournalError> {
        if let Some(change) = self.changes.get_mut(number) {
            *change = None;
        }
        self.write(&Record::Undone(number))
    }

    pub(crate) fn record_device(&mut self, device: DeviceInterface) -> Result<(), JournalError> {
        self.write(&Record::Device(device.clone()))?;
        self.device = Some(device);
        Ok(())
    }

    pub(crate) fn complete(&mut self) -> Result<(), JournalError> {
        self.write(&Record::Complete)?;
        self.is_complete = true;
        Ok(())
    }

    /// Writes the journal anew without the changes that were undone, if they are many and most. After an
    /// error it is as before.
    pub(crate) fn compact(&mut self) -> Result<(), JournalError> {
        let undone = self
            .changes
            .iter()
            .filter(|change| change.is_none())
            .count();
        if undone <= MOST_UNDONE.max(self.changes.len() / 2) {
            return Ok(());
        }
        let mut draft = self.path.clone().into_os_string();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        // A process that was killed may have left one.
        let _ = fs::remove_file(&draft);
        let mut compacted = Self::create(&draft, self.header.clone())?;
        let changes = self.changes.iter().flatten().cloned().map(Some);
        compacted.changes = changes.collect();
        compacted.device.clone_from(&self.device);
        compacted.is_complete = self.is_complete;
        let written = compacted.append_all().and_then(|()| {
            fs::rename(&draft, &self.path)?;
            sync_folder(&self.path)
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&draft);
            return Err(failed("write", &draft)(error));
        }
        compacted.path.clone_from(&self.path);
        *self = compacted;
        Ok(())
    }

    /// Appends the records of everything that is known.
    fn append_all(&mut self) -> io::Result<()> {
        let device = self.device.clone().map(Record::Device);
        let changes = self.changes.iter().enumerate();
        let changes = changes.filter_map(|(number, it)| Some(Record::Do(number, it.clone()?)));
        let complete = self.is_complete.then_some(Record::Complete);
        let mut lines = Vec::new();
        for record in device.into_iter().chain(changes).chain(complete) {
            lines.extend(line(&record)?);
        }
        self.file.write_all(&lines)?;
        self.file.sync_all()
    }

    /// Removes the journal, after everything was undone.
    pub(crate) fn remove(self) -> Result<(), JournalError> {
        fs::remove_file(&self.path).map_err(failed("remove", &self.path))
    }

    /// Creates a journal. Until the first lasting change it only says that there is a tunnel.
    fn create(path: &Path, header: Header) -> Result<Self, JournalError> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create_new(true).mode(0o600).open(path);
        let mut journal = Self {
            path: path.to_owned(),
            file: file.map_err(failed("create", path))?,
            header,
            changes: Vec::new(),
            device: None,
            is_complete: false,
        };
        let written = line(&journal.header).and_then(|line| {
            journal.file.write_all(&line)?;
            journal.file.sync_all()?;
            sync_folder(path)
        });
        if let Err(error) = written.and_then(|()| journal.append(&Record::Begun)) {
            let _ = fs::remove_file(path);
            return Err(failed("write", path)(error));
        }
        Ok(journal)
    }

    fn open(path: &Path) -> Result<Option<Self>, JournalError> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", path)(error)),
        };
        if metadata.len() > LONGEST {
            let error = io::Error::from(io::ErrorKind::FileTooLarge);
            return Err(failed("read", path)(error));
        }
        let text = fs::read(path).map_err(failed("read", path))?;
        let end = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        let lines = text.get(..end).unwrap_or_default();
        let mut lines = lines.split_inclusive(|byte| *byte == b'\n').enumerate();
        let Some((_, header)) = lines.next() else {
            // The header was not completed, so nothing was begun.
            fs::remove_file(path).map_err(failed("remove", path))?;
            return Ok(None);
        };
        let header = parse_header(path, header)?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(failed("open", path))?;
        // The next record must not continue an incomplete line.
        file.set_len(end as u64).map_err(failed("write", path))?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
            header,
            changes: Vec::new(),
            device: None,
            is_complete: false,
        };
        for (number, line) in lines {
            let record = serde_json::from_slice(line).map_err(|error| error.to_string());
            let added = record.and_then(|record| journal.add(record));
            added.map_err(|reason| malformed(path, number, reason))?;
        }
        Ok(Some(journal))
    }

    /// Adds a record that was read.
    fn add(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Do(number, change) if number == self.changes.len() => {
                self.changes.push(Some(change));
            }
            Record::Do(number, _) => return Err(format!("the number {number} is not the next")),
            Record::Undone(number) => match self.changes.get_mut(number) {
                Some(change) => *change = None,
                None => return Err(format!("there is no change {number}")),
            },
            Record::Begun => {}
            Record::Device(device) => self.device = Some(device),
            Record::Complete => self.is_complete = true,
        }
        Ok(())
    }

    fn write(&mut self, record: &Record) -> Result<(), JournalError> {
        self.append(record).map_err(failed("write", &self.path))
    }

    fn append(&mut self, record: &Record) -> io::Result<()> {
        let line = line(record)?;
        let before = self.file.metadata()?.len();
        let written = self
            .file
            .write_all(&line)
            .and_then(|()| self.file.sync_all());
        // The next record must not continue an incomplete line.
        written.inspect_err(|_| drop(self.file.set_len(before)))
    }
}

/// Writes the name of a file to the disk, which is in its folder.
fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent()
        .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

fn malformed(path: &Path, number: usize, reason: String) -> JournalError {
    JournalError::Malformed {
        path: path.to_owned(),
        line: number + 1,
        reason,
    }
}

fn parse_header(path: &Path, line: &[u8]) -> Result<Header, JournalError> {
    /// The part of the header that every version has.
    #[derive(Deserialize)]
    struct AnyVersion {
        version: u32,
    }
    let parsed = serde_json::from_slice::<AnyVersion>(line);
    let found = parsed
        .map_err(|error| malformed(path, 0, error.to_string()))?
        .version;
    if found != VERSION {
        let path = path.to_owned();
        return Err(JournalError::Version { path, found });
    }
    serde_json::from_slice(line).map_err(|error| malformed(path, 0, error.to_string()))
}

#[cfg(test)]
mod tests;

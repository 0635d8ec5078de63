//! The journal: each step is recorded on disk before it is executed, so that a process that knows
//! nothing else can undo it.
//!
//! A journal consists of lines of JSON: a header, then records. `/run` is a tmpfs, so a reboot
//! removes the journal together with everything that it lists; nothing is fsynced. An incomplete
//! last line is a step that was not begun, because its writer ended before.

mod error;
mod header;
mod lock;
mod record;
mod state;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::JournalError;
pub use header::Header;
pub use lock::Lock;
pub(crate) use lock::Turn;
pub use state::State;

use crate::bypass::Bypass;
use crate::change::Change;
use crate::identity::Socket;
use crate::last_state::LastState;
use crate::request::Request;
use header::Seen;
use record::{Contents, Record, line, whole_lines};

/// Time limit for another process that changes the same tunnel.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The folder of the journals.
pub const DIRECTORY: &str = "/run/taupe";

/// The steps executed to bring a tunnel up.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    contents: Contents,
}

impl Journal {
    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.contents.header
    }

    /// Returns the index of the device's interface, if it is known.
    #[must_use]
    pub fn interface(&self) -> Option<u32> {
        self.contents.interface
    }

    /// Returns the configuration socket of the device's process, if it is known.
    pub(crate) fn socket(&self) -> Option<Socket> {
        self.contents.socket
    }

    /// Returns true if `up` was completed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.contents.complete
    }

    /// Returns the steps that were begun or executed and not undone, with their numbers.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = (usize, &Change)> {
        let steps = self.contents.steps.iter().enumerate();
        steps.filter_map(|(number, change)| Some((number, change.as_ref()?)))
    }

    /// Returns the changes that should be in effect as they were made: all except those that a
    /// command of the file has altered.
    pub(crate) fn applied(&self) -> Vec<(usize, Change)> {
        self.contents.applied()
    }

    /// Returns the number of the next step.
    pub(crate) fn next(&self) -> usize {
        self.contents.steps.len()
    }

    /// Records a step that is about to be executed.
    pub(crate) fn record(&mut self, change: &Change) -> Result<(), JournalError> {
        let number = self.contents.steps.len();
        self.write(Record::Do(number, change.clone()))
    }

    pub(crate) fn undone(&mut self, number: usize) -> Result<(), JournalError> {
        self.write(Record::Undone(number))
    }

    pub(crate) fn record_interface(&mut self, index: u32) -> Result<(), JournalError> {
        self.write(Record::Interface(index))
    }

    pub(crate) fn record_socket(&mut self, socket: Socket) -> Result<(), JournalError> {
        self.write(Record::Socket(socket))
    }

    /// Records that a command of the file has altered the result of a step, which is then as the
    /// user wants it.
    pub(crate) fn altered(&mut self, number: usize) -> Result<(), JournalError> {
        self.write(Record::Altered(number))
    }

    /// Records the known foreign routes that bypass the tunnel.
    pub(crate) fn record_bypasses(&mut self, bypasses: Vec<Bypass>) -> Result<(), JournalError> {
        self.write(Record::Bypasses(bypasses))
    }

    /// Returns the routes that were recorded last.
    pub(crate) fn bypasses(&self) -> Option<&[Bypass]> {
        self.contents.bypasses.as_deref()
    }

    /// Records the device's state.
    pub(crate) fn record_device(&mut self, state: LastState) -> Result<(), JournalError> {
        self.write(Record::Device(state))
    }

    /// Returns the device's state that was recorded last.
    pub(crate) fn device(&self) -> Option<&LastState> {
        self.contents.device.as_ref()
    }

    pub(crate) fn completed(&mut self) -> Result<(), JournalError> {
        self.write(Record::Complete)
    }

    /// Records that Taupe has saved `file`, if the tunnel was made from it.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn saved(&mut self, file: &Path) -> Result<(), JournalError> {
        if self.header().config != file {
            return Ok(());
        }
        self.write(Record::Saved(Seen::of(file)))
    }

    /// Writes the journal again, without the undone steps, for a changed file.
    pub(crate) fn rewrite(&mut self, request: &Request<'_>) -> Result<(), JournalError> {
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
            contents: Contents::new(header),
        };
        let written = line(anew.header()).and_then(|line| anew.file.write_all(&line));
        written.map_err(failed("write", &anew.path))?;
        for (number, change) in self.changes() {
            let altered = self.contents.altered.contains(&number);
            let number = anew.next();
            anew.record(change)?;
            if altered {
                anew.altered(number)?;
            }
        }
        if let Some(index) = self.interface() {
            anew.record_interface(index)?;
        }
        if let Some(socket) = self.socket() {
            anew.record_socket(socket)?;
        }
        if let Some(state) = self.device() {
            anew.record_device(state.clone())?;
        }
        if let Some(bypasses) = self.bypasses() {
            anew.record_bypasses(bypasses.to_vec())?;
        }
        anew.completed()?;
        fs::rename(&anew.path, &self.path).map_err(failed("replace", &self.path))?;
        anew.path.clone_from(&self.path);
        *self = anew;
        Ok(())
    }

    /// Removes the journal, after everything was undone.
    pub(crate) fn remove(self) -> Result<(), JournalError> {
        fs::remove_file(&self.path).map_err(failed("remove", &self.path))
    }

    fn write(&mut self, record: Record) -> Result<(), JournalError> {
        let written = line(&record).and_then(|line| {
            let before = self.file.metadata()?.len();
            // The next record must not continue an incomplete line.
            self.file
                .write_all(&line)
                .inspect_err(|_| drop(self.file.set_len(before)))
        });
        written.map_err(failed("write", &self.path))?;
        // This cannot fail, because the record's number follows from the previous steps.
        let _ = self.contents.add(record);
        Ok(())
    }

    fn open(path: &Path) -> Result<Option<Self>, JournalError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", path)(error)),
        };
        let whole = whole_lines(&text);
        let Some(contents) = Contents::read(path, whole)? else {
            fs::remove_file(path).map_err(failed("remove", path))?;
            return Ok(None);
        };
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(failed("open", path))?;
        // The next record must not continue an incomplete line.
        let length = u64::try_from(whole.len()).unwrap_or(u64::MAX);
        file.set_len(length).map_err(failed("write", path))?;
        let path = path.to_owned();
        Ok(Some(Self {
            path,
            file,
            contents,
        }))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    move |source| JournalError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

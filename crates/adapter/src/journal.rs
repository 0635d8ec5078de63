//! The journal: each step is recorded on disk before it is executed, so that a process that knows
//! nothing else can undo it.
//!
//! A journal consists of lines of JSON: a header, then records. `/run` is a tmpfs, so a reboot
//! removes the journal together with everything that it lists; nothing is fsynced. An incomplete
//! last line is a step that was not begun, because its writer ended before.

mod draft;
mod error;
mod header;
mod lock;
mod record;
mod state;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use draft::Draft;
pub use error::JournalError;
pub use header::Header;
pub use lock::Lock;
pub(crate) use lock::Turn;
pub use state::{Journals, State};

use crate::bypass::Bypass;
use crate::change::Change;
use crate::file_stamp::FileStamp;
use crate::identity::Socket;
use crate::last_state::LastState;
use crate::request::Request;
use record::{Contents, Record, line, whole_lines};
use serde_json::value::to_raw_value;

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

/// An end that a journal had.
#[derive(Clone, Copy)]
pub(crate) struct End {
    length: u64,
    steps: usize,
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

    /// Returns true if a step blocks traffic when nobody carries the tunnel.
    pub(crate) fn blocks(&self) -> bool {
        self.contents.blocks()
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

    /// Records that a step was undone. After an error, this copy in memory still knows it.
    pub(crate) fn undone(&mut self, number: usize) -> Result<(), JournalError> {
        if let Some(step) = self.contents.steps.get_mut(number) {
            *step = None;
        }
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
    pub(crate) fn record_device(&mut self, state: &LastState) -> Result<(), JournalError> {
        let state =
            to_raw_value(state).map_err(|error| failed("write", &self.path)(error.into()))?;
        self.write(Record::Device(state))
    }

    /// Returns the device's state that was recorded last, if this version can read it.
    pub(crate) fn device(&self) -> Option<LastState> {
        let state = self.contents.device.as_deref()?;
        serde_json::from_str(state.get()).ok()
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
        self.write(Record::Saved(FileStamp::of(file)))
    }

    /// Writes a new journal for a changed file, without the undone steps and those with the numbers
    /// `undone`. It does not replace this one yet.
    pub(crate) fn draft(
        &self,
        request: &Request<'_>,
        undone: &[usize],
    ) -> Result<Draft, JournalError> {
        Draft::of(self, request, undone)
    }

    /// Replaces the journal by that of the next tunnel of this name, with the device's last state and
    /// the steps that `stays` returns true for. They get other numbers.
    pub(crate) fn begin_again(
        &mut self,
        header: Header,
        stays: impl Fn(usize) -> bool,
    ) -> Result<(), JournalError> {
        Draft::anew(self, header, stays)?.replace(self)
    }

    /// Returns the present end of the journal.
    pub(crate) fn end(&self) -> Result<End, JournalError> {
        let length = self.file.metadata().map_err(failed("read", &self.path))?;
        Ok(End {
            length: length.len(),
            steps: self.next(),
        })
    }

    /// Removes all records after an earlier end, which must be records of steps that have no effect
    /// any more. The file becomes shorter, so this succeeds also if the disk is full.
    pub(crate) fn shorten(&mut self, end: End) -> Result<(), JournalError> {
        // The numbers of the steps stay in use as long as the file contains them.
        let after = self.contents.steps.iter_mut().skip(end.steps);
        after.for_each(|step| *step = None);
        let shortened = self.file.set_len(end.length);
        shortened.map_err(failed("write", &self.path))?;
        self.contents.steps.truncate(end.steps);
        Ok(())
    }

    /// Removes the journal, after everything was undone.
    pub(crate) fn remove(self) -> Result<(), JournalError> {
        // A killed process may have left a draft.
        let _ = fs::remove_file(draft::path(&self.path));
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

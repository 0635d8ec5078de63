//! A new journal that is written completely before it replaces the previous one.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::record::{Contents, Record, line};
use super::{Header, Journal, JournalError, failed};
use crate::request::Request;

/// A journal for a changed file. Dropping it leaves the previous journal as it is.
pub(crate) struct Draft {
    pub(crate) journal: Journal,
    file: DraftFile,
}

/// The path of a draft, which is removed on drop.
struct DraftFile(PathBuf);

impl Drop for DraftFile {
    fn drop(&mut self) {
        // It does not exist any more if the draft has replaced the journal.
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the path of a journal's draft.
pub(super) fn path(journal: &Path) -> PathBuf {
    journal.with_extension("journal-draft")
}

impl Draft {
    /// Writes a journal for `request` with the steps of `previous`, except those that were undone
    /// and those with the numbers `undone`.
    pub(super) fn of(
        previous: &Journal,
        request: &Request<'_>,
        undone: &[usize],
    ) -> Result<Self, JournalError> {
        let header = Header {
            since: previous.header().since,
            lanes: previous.header().lanes,
            outer_seen: previous.header().outer_seen,
            ..Header::new(request, previous.header().namespace.clone())
        };
        let mut draft = Self::empty(previous, header)?;
        draft.write(previous, undone)?;
        Ok(draft)
    }

    /// Writes a journal for the next tunnel of this name, with those steps of `previous` that `stays`
    /// returns true for, and the last state of its device.
    pub(super) fn anew(
        previous: &Journal,
        header: Header,
        stays: impl Fn(usize) -> bool,
    ) -> Result<Self, JournalError> {
        let mut draft = Self::empty(previous, header)?;
        draft.write_header()?;
        for (_, change) in previous.changes().filter(|(number, _)| stays(*number)) {
            draft.journal.record(change)?;
        }
        if let Some(state) = &previous.contents.device {
            draft.journal.write(Record::Device(state.clone()))?;
        }
        Ok(draft)
    }

    fn empty(previous: &Journal, header: Header) -> Result<Self, JournalError> {
        let path = path(&previous.path);
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let file = options.open(&path).map_err(failed("make", &path))?;
        Ok(Self {
            journal: Journal {
                path: path.clone(),
                file,
                contents: Contents::new(header),
            },
            file: DraftFile(path),
        })
    }

    fn write_header(&mut self) -> Result<(), JournalError> {
        let anew = &mut self.journal;
        let emptied = anew.file.set_len(0);
        let written = emptied
            .and_then(|()| line(anew.header()))
            .and_then(|line| anew.file.write_all(&line));
        written.map_err(failed("write", &anew.path))
    }

    fn write(&mut self, previous: &Journal, undone: &[usize]) -> Result<(), JournalError> {
        self.write_header()?;
        let anew = &mut self.journal;
        let changes = previous.changes();
        for (number, change) in changes.filter(|(number, _)| !undone.contains(number)) {
            let altered = previous.contents.altered.contains(&number);
            let number = anew.next();
            anew.record(change)?;
            if altered {
                anew.altered(number)?;
            }
        }
        if let Some(index) = previous.interface() {
            anew.record_interface(index)?;
        }
        if let Some(socket) = previous.socket() {
            anew.record_socket(socket)?;
        }
        if let Some(state) = &previous.contents.device {
            anew.write(Record::Device(state.clone()))?;
        }
        if let Some(bypasses) = previous.bypasses() {
            anew.record_bypasses(bypasses.to_vec())?;
        }
        anew.completed()
    }

    /// Replaces the journal by this one.
    pub(crate) fn replace(self, previous: &mut Journal) -> Result<(), JournalError> {
        let Self { mut journal, file } = self;
        fs::rename(&file.0, &previous.path).map_err(failed("replace", &previous.path))?;
        journal.path.clone_from(&previous.path);
        *previous = journal;
        Ok(())
    }
}

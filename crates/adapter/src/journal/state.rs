//! The folder of the journals.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::record::{Contents, whole_lines};
use super::{DIRECTORY, Header, JournalError};
use crate::bypass::Bypass;
use crate::change::Change;
use crate::identity::Place;
use crate::namespace::Namespace;

/// The folder of the journals.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) directory: PathBuf,
}

/// The journals of all tunnels of a network namespace that were not brought down, as they were when
/// they were read. A journal that cannot be read is left out.
#[derive(Debug)]
pub struct Journals {
    state: State,
    /// By the names of the interfaces.
    contents: BTreeMap<String, Contents>,
}

impl Journals {
    /// Returns the headers, also of tunnels whose process has ended, by the names of the interfaces.
    pub fn headers(&self) -> impl Iterator<Item = &Header> {
        self.contents.values().map(|contents| &contents.header)
    }

    /// Returns the header of a tunnel.
    #[must_use]
    pub fn header(&self, interface: &str) -> Option<&Header> {
        Some(&self.contents.get(interface)?.header)
    }

    /// Returns true if the tunnel is up now. It is not if `up` has not finished.
    #[must_use]
    pub fn is_running(&self, interface: &str) -> bool {
        let contents = self.contents.get(interface);
        contents.is_some_and(|contents| contents.is_running(interface))
    }

    /// Returns true if the tunnel blocks traffic when nobody carries it.
    #[must_use]
    pub fn blocks(&self, interface: &str) -> bool {
        let contents = self.contents.get(interface);
        contents.is_some_and(Contents::blocks)
    }

    /// Returns true if the tunnel was brought up and its process was killed since, also if bringing it
    /// up again has failed.
    #[must_use]
    pub fn is_killed(&self, interface: &str) -> bool {
        self.contents.get(interface).is_some_and(|contents| {
            let is_left = || contents.blocks() && !self.state.is_changing(interface);
            (contents.complete || is_left())
                && taupe_os_linux::interface::index(interface).is_none()
                && !contents.lives(interface)
        })
    }

    /// Returns the location of the interface of a tunnel that is up, or `None` if it is not.
    #[must_use]
    pub fn place(&self, interface: &str) -> Option<Place> {
        let contents = self.contents.get(interface);
        let index = contents.filter(|it| it.is_running(interface))?.interface?;
        if taupe_os_linux::interface::index(interface) == Some(index) {
            return Some(Place::Here);
        }
        let name = taupe_os_linux::interface::name(index);
        Some(name.map_or(Place::Elsewhere, Place::Renamed))
    }
}

/// The changes of a running tunnel that should be in effect.
pub(crate) struct Applied {
    /// The changes that should be in effect as they were made, with their numbers.
    pub(crate) changes: Vec<(usize, Change)>,
    /// The index of the tunnel's interface.
    pub(crate) index: u32,
    /// The foreign routes around the tunnel that are known; `None` if `up` did not look for them.
    pub(crate) bypasses: Option<Vec<Bypass>>,
}

impl Default for State {
    fn default() -> Self {
        Self::at(DIRECTORY)
    }
}

impl State {
    /// Returns the state with journals in another folder than [`DIRECTORY`].
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// Returns the changes in the journals of other interfaces of a network namespace. Unreadable
    /// journals are skipped.
    pub(crate) fn others(&self, interface: &str, namespace: &Namespace) -> Vec<Change> {
        let others = self.journals(namespace);
        let others = others.filter(|contents| contents.header.interface != interface);
        others
            .flat_map(|contents| contents.steps.into_iter().flatten())
            .collect()
    }

    /// Returns the headers of [`State::read`].
    #[must_use]
    pub fn here(&self) -> Vec<Header> {
        let journals = self.read().contents.into_values();
        journals.map(|contents| contents.header).collect()
    }

    /// Reads the journals of this network namespace.
    #[must_use]
    pub fn read(&self) -> Journals {
        let namespace = Namespace::current();
        Journals {
            state: self.clone(),
            contents: self
                .journals(&namespace)
                .map(|contents| (contents.header.interface.clone(), contents))
                .collect(),
        }
    }

    /// Returns the names of all tunnels that were not brought down, in any network namespace, also if
    /// another version has written the journal.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        self.paths().filter_map(name).collect()
    }

    /// Returns all readable journals of a network namespace.
    fn journals(&self, namespace: &Namespace) -> impl Iterator<Item = Contents> {
        self.paths()
            .filter_map(|path| {
                let text = fs::read(&path).ok()?;
                Contents::read(&path, whole_lines(&text)).ok().flatten()
            })
            .filter(move |contents| contents.header.namespace == *namespace)
    }

    /// Returns the paths of all journals.
    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let paths = entries.flatten().map(|entry| entry.path());
        paths.filter(|path| path.extension().is_some_and(|e| e == "journal"))
    }

    /// Returns the header of the tunnel that is up on this interface, without waiting for a process
    /// that changes it. Returns `None` if `up` did not make the tunnel, made it in another network
    /// namespace, or has not finished.
    #[must_use]
    pub fn of_running(&self, interface: &str) -> Option<Header> {
        let path = self.journal(interface);
        let contents = Contents::read(&path, whole_lines(&fs::read(&path).ok()?));
        let contents = contents.ok().flatten()?;
        contents.is_running(interface).then_some(contents.header)
    }

    /// Returns the changes of the tunnel that is up on this interface, or `None` in the cases of
    /// [`State::of_running`].
    pub(crate) fn applied(&self, interface: &str) -> Option<Applied> {
        let path = self.journal(interface);
        let contents = Contents::read(&path, whole_lines(&fs::read(&path).ok()?));
        let contents = contents.ok().flatten()?;
        let index = contents
            .interface
            .filter(|_| contents.is_running(interface))?;
        Some(Applied {
            changes: contents.applied(),
            index,
            bypasses: contents.bypasses,
        })
    }

    /// Returns true if another version of Taupe has made this tunnel, whose journal this one cannot read.
    #[must_use]
    pub fn is_of_another_version(&self, interface: &str) -> bool {
        let path = self.journal(interface);
        let text = fs::read(&path).unwrap_or_default();
        matches!(
            Contents::read(&path, whole_lines(&text)),
            Err(JournalError::Version { .. })
        )
    }

    /// Returns true if `up` has begun to make this tunnel and `down` has not finished.
    #[must_use]
    pub fn is_begun(&self, interface: &str) -> bool {
        self.journal(interface).exists()
    }

    pub(super) fn journal(&self, interface: &str) -> PathBuf {
        self.directory.join(format!("{interface}.journal"))
    }
}

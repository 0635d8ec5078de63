//! The folder of the journals.

use std::fs;
use std::path::PathBuf;

use super::record::{Contents, whole_lines};
use super::{DIRECTORY, Header};
use crate::bypass::Bypass;
use crate::change::Change;
use crate::identity::Place;
use crate::namespace::Namespace;

/// The folder of the journals.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) directory: PathBuf,
}

/// The state in which a tunnel is to be.
pub(crate) struct Applied {
    /// The changes that are to be as they were made, by their numbers.
    pub(crate) changes: Vec<(usize, Change)>,
    /// The index of its interface.
    pub(crate) index: u32,
    /// The routes of others around the tunnel that its owner knows of; `None` if nobody has
    /// looked for them.
    pub(crate) bypasses: Option<Vec<Bypass>>,
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

    /// The changes in the journals of other interfaces of a network namespace. Those
    /// that cannot be read are left out.
    pub(crate) fn others(&self, interface: &str, namespace: &Namespace) -> Vec<Change> {
        let others = self.journals(namespace);
        let others = others.filter(|contents| contents.header.interface != interface);
        others
            .flat_map(|contents| contents.steps.into_iter().flatten())
            .collect()
    }

    /// Returns how the tunnels of this network namespace were made that have not been
    /// taken down, whether or not their processes still run.
    #[must_use]
    pub fn here(&self) -> Vec<Header> {
        let namespace = Namespace::current();
        let mut here: Vec<_> = self
            .journals(&namespace)
            .map(|contents| contents.header)
            .collect();
        here.sort_by(|a, b| a.interface.cmp(&b.interface));
        here
    }

    /// All journals of a network namespace that can be read.
    fn journals(&self, namespace: &Namespace) -> impl Iterator<Item = Contents> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let paths = entries.flatten().map(|entry| entry.path());
        paths
            .filter(|path| path.extension().is_some_and(|e| e == "journal"))
            .filter_map(|path| {
                let text = fs::read(&path).ok()?;
                Contents::read(&path, whole_lines(&text)).ok().flatten()
            })
            .filter(move |contents| contents.header.namespace == *namespace)
    }

    /// Returns how the tunnel that is up on this interface was made, without waiting
    /// for a process that changes it. `None` when `up` has not made it, or in another
    /// network namespace, or is not done yet.
    #[must_use]
    pub fn of_running(&self, interface: &str) -> Option<Header> {
        let path = self.journal(interface);
        let contents = Contents::read(&path, whole_lines(&fs::read(&path).ok()?));
        let contents = contents.ok().flatten()?;
        contents.is_running(interface).then_some(contents.header)
    }

    /// The place of the interface of a tunnel that is up. `None` as with
    /// [`State::of_running`].
    #[must_use]
    pub fn place(&self, interface: &str) -> Option<Place> {
        let Applied { index, .. } = self.applied(interface)?;
        if taupe_os_linux::interface::index(interface) == Some(index) {
            return Some(Place::Here);
        }
        let name = taupe_os_linux::interface::name(index);
        Some(name.map_or(Place::Elsewhere, Place::Renamed))
    }

    /// The state in which a tunnel that is up on this interface is to be. `None` as with
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

    /// Checks that `up` has begun to make this tunnel, and `down` has not ended it.
    #[must_use]
    pub fn is_begun(&self, interface: &str) -> bool {
        self.journal(interface).exists()
    }

    /// The tunnels of this network namespace that were brought up, and whose
    /// process has been killed since.
    #[must_use]
    pub fn killed(&self) -> Vec<String> {
        let here = Namespace::current();
        let complete = self.journals(&here).filter(|contents| contents.complete);
        let killed = complete.filter(|contents| {
            let name = &contents.header.interface;
            taupe_os_linux::interface::index(name).is_none() && !contents.lives(name)
        });
        let mut names: Vec<_> = killed.map(|contents| contents.header.interface).collect();
        names.sort();
        names
    }

    pub(super) fn journal(&self, interface: &str) -> PathBuf {
        self.directory.join(format!("{interface}.journal"))
    }
}

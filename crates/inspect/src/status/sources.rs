//! Reading everything that the state of tunnels follows from, once.

use super::devices::Devices;
use super::files::Files;
use super::{Status, StatusError, Tunnel};
use crate::conf::{self, Conf};
use crate::tunnel::names_among;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use taupe_adapter::{Compatibility, Journals, State as JournalFolder};
use taupe_config::file::File;

/// Everything that the state of tunnels follows from, except what the kernel knows.
pub(super) struct Sources {
    journals: Journals,
    pub(super) devices: Devices,
    /// Names of the tunnels, with the current content of their files, if these can be read and have no
    /// errors.
    pub(super) tunnels: BTreeMap<String, Option<Arc<File>>>,
}

impl Sources {
    /// Reads those of one tunnel, or of all.
    pub(super) fn read(word: Option<&OsStr>, files: &mut Files) -> Result<Self, StatusError> {
        thread::scope(|scope| {
            // To parse 10,000 peers takes as long for a device as for a file.
            let devices = thread::Builder::new().spawn_scoped(scope, Devices::read);
            let journals = JournalFolder::default().read();
            let names: BTreeSet<String> = match word {
                // The file may have been removed since.
                Some(word) => BTreeSet::from([interface_of(word, &journals)?]),
                None => names_among(&journals)?,
            };
            let with_file = |name: String| {
                let header = journals.header(&name);
                let file = header.and_then(|header| files.current(header));
                (name, file)
            };
            let tunnels = names.into_iter().map(with_file).collect();
            files.retain(journals.headers());
            let devices = match devices {
                Ok(devices) => devices.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // There are too many threads.
                Err(_) => Devices::read(),
            };
            Ok(Self {
                journals,
                devices,
                tunnels,
            })
        })
    }

    pub(super) fn status(&self) -> Result<Status, StatusError> {
        let Self {
            journals,
            devices,
            tunnels,
        } = self;
        let tunnels = tunnels.iter();
        let tunnels =
            tunnels.map(|(name, file)| Tunnel::look(name, file.as_deref(), journals, devices));
        let tunnels = tunnels.collect::<Result<Vec<_>, _>>()?;
        Ok(Status {
            schema: 1,
            state: tunnels.iter().map(|tunnel| tunnel.state).max(),
            tunnels,
        })
    }
}

/// Returns the interface that a word of the command line means: that of an existing tunnel, or of an
/// existing file.
fn interface_of(word: &OsStr, journals: &Journals) -> Result<String, StatusError> {
    let name = conf::interface(word).map(|name| name.to_string());
    let is_there = |name: &String| {
        journals.header(name).is_some()
            || taupe_transparent::capture::is_in_effect(name).unwrap_or(false)
    };
    match name.filter(is_there) {
        Some(name) => Ok(name),
        None => Ok(Conf::find(word, Compatibility::Taupe)?
            .interface
            .to_string()),
    }
}

//! Bringing a tunnel down.

use std::time::Duration;

use taupe_config::file::File;

use crate::hooks::with_names;
use crate::journal::{JournalError, Store};
use crate::machine::{Machine, Report, StepError};
use crate::undo::{Leftover, list, undo_all};

/// Time limit for another process that changes the same tunnel.
const PATIENCE: Duration = Duration::from_secs(30);

/// Error of bringing a tunnel down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownError {
    /// There is no tunnel of this name.
    #[error("{0} is not up")]
    NotUp(String),
    /// Another program has made the device.
    #[error("another program has made {0}")]
    NotOurs(String),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A step failed before anything was undone.
    #[error("{error}; {interface} is up still")]
    Step {
        /// The tunnel.
        interface: String,
        /// The error.
        error: StepError,
    },
    /// The tunnel is down, except for these leftovers.
    #[error("{interface} is down, but this went wrong:\n  {}", list(.leftovers))]
    Leftovers {
        /// The tunnel.
        interface: String,
        /// The changes that could not be undone.
        leftovers: Vec<Leftover>,
    },
}

/// Brings the tunnel down, even if its process was killed. `file` is its file, if it exists and is
/// valid.
///
/// # Errors
/// See [`DownError`].
pub fn down(
    machine: &mut dyn Machine,
    store: &Store,
    interface: &str,
    file: Option<&File>,
    report: &mut dyn Report,
) -> Result<(), DownError> {
    let lock = store.lock(interface, PATIENCE)?;
    let device = machine.device();
    let Some(journal) = lock.journal()? else {
        return Err(match device {
            Some(_) => DownError::NotOurs(interface.to_owned()),
            None => DownError::NotUp(interface.to_owned()),
        });
    };
    let failed = |error| DownError::Step {
        interface: interface.to_owned(),
        error,
    };
    let is_stale = !machine
        .boot()
        .map_err(failed)?
        .is_same(&journal.header().boot);
    let device =
        device.filter(|device| !is_stale && journal.device().is_none_or(|it| it == device));
    let name = device.as_ref().map(|device| &*device.name);
    if device.is_some() {
        let pre_down = file.map(|file| &file.interface.hooks.pre_down);
        for hook in pre_down.into_iter().flatten() {
            let command = with_names(hook, name, interface);
            report.step(&command);
            machine.run_hook(&command, name).map_err(failed)?;
        }
    }
    if let Some(device) = &device {
        report.step(&format!("rm /var/run/wireguard/{}.sock", device.name));
        machine.delete(device).map_err(failed)?;
    }
    let post_down = match file {
        Some(file) => file.interface.hooks.post_down.clone(),
        None => journal.header().post_down.clone(),
    };
    let mut leftovers = undo_all(machine, journal, is_stale, report);
    for hook in post_down.iter().filter(|_| !is_stale) {
        let command = with_names(hook, name, interface);
        report.step(&command);
        if let Err(error) = machine.run_hook(&command, name) {
            let error = error.into();
            leftovers.push(Leftover { command, error });
        }
    }
    match leftovers.is_empty() {
        true => Ok(()),
        false => Err(DownError::Leftovers {
            interface: interface.to_owned(),
            leftovers,
        }),
    }
}

/// Undoes the changes that outlive the device, from the device's own process after the device has
/// ended. If a `down` is at work, waits until that has done it.
///
/// # Errors
/// See [`DownError`].
pub fn clean_up(
    machine: &mut dyn Machine,
    store: &Store,
    interface: &str,
    report: &mut dyn Report,
) -> Result<(), DownError> {
    let lock = store.lock(interface, PATIENCE)?;
    let Some(journal) = lock.journal()? else {
        return Ok(());
    };
    match undo_all(machine, journal, false, report) {
        leftovers if leftovers.is_empty() => Ok(()),
        leftovers => Err(DownError::Leftovers {
            interface: interface.to_owned(),
            leftovers,
        }),
    }
}

//! Bringing a tunnel down.

use std::path::Path;
use std::time::Duration;

use taupe_config::file::File;

use crate::hooks::with_names;
use crate::journal::{Journal, JournalError, Store};
use crate::machine::{Machine, Report, StepError};
use crate::save::{SaveError, save_device};
use crate::undo::{Leftover, list, undo_all};

/// Time limit for another process that changes the same tunnel.
const PATIENCE: Duration = Duration::from_secs(30);

/// A tunnel to take down.
#[derive(Clone, Copy)]
pub struct Down<'a> {
    /// The tunnel's name.
    pub interface: &'a str,
    /// The path and the contents of its file, if it exists and is valid.
    pub file: Option<(&'a Path, &'a File)>,
    /// Save the file first if it has `SaveConfig = true`.
    pub save: bool,
}

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
    /// The file could not be saved. Nothing has been undone.
    #[error("{error}; {interface} is up still")]
    NotSaved {
        /// The tunnel.
        interface: String,
        /// The error.
        error: SaveError,
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

/// Brings the tunnel down, even if its process was killed.
///
/// # Errors
/// See [`DownError`].
pub fn down(
    machine: &mut dyn Machine,
    store: &Store,
    request: &Down<'_>,
    report: &mut dyn Report,
) -> Result<(), DownError> {
    let Down {
        interface, save, ..
    } = *request;
    let file = request.file.map(|(_, file)| file);
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
    // FreeBSD 14 keeps the interface of a process that was killed.
    let left = journal.device().filter(|_| !is_stale && device.is_none());
    if let Some(left) = left {
        machine.delete(left).map_err(failed)?;
    }
    if let Some(device) = &device {
        let saved = request
            .file
            .filter(|(_, file)| save && file.interface.save_config);
        if let Some((path, file)) = saved {
            let saved = save_device(machine, device, path, file);
            saved.map_err(|error| DownError::NotSaved {
                interface: interface.to_owned(),
                error,
            })?;
        }
        report.step(&format!("rm /var/run/wireguard/{}.sock", device.name));
        machine.delete(device).map_err(failed)?;
    }
    let post_down = match file {
        Some(file) => file.interface.hooks.post_down.clone(),
        None => journal.header().post_down.clone(),
    };
    let mut leftovers = undo_all(machine, journal, is_stale, report);
    if !is_stale {
        leftovers.extend(run_post_down(machine, &post_down, name, interface, report));
    }
    finish(interface, leftovers)
}

/// Undoes the changes that outlive the device, from the device's own process after the device has
/// ended, and runs the file's PostDown commands. If a `down` is at work, waits until that has done
/// both.
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
    let journal = lock.journal()?;
    let Some(journal) = journal.filter(Journal::is_of_this_process) else {
        return Ok(());
    };
    let post_down = journal.header().post_down.clone();
    let mut leftovers = undo_all(machine, journal, false, report);
    leftovers.extend(run_post_down(machine, &post_down, None, interface, report));
    finish(interface, leftovers)
}

fn run_post_down(
    machine: &mut dyn Machine,
    hooks: &[String],
    device: Option<&str>,
    interface: &str,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let mut failed = Vec::new();
    for hook in hooks {
        let command = with_names(hook, device, interface);
        report.step(&command);
        if let Err(error) = machine.run_hook(&command, device) {
            let error = error.into();
            failed.push(Leftover { command, error });
        }
    }
    failed
}

fn finish(interface: &str, leftovers: Vec<Leftover>) -> Result<(), DownError> {
    match leftovers.is_empty() {
        true => Ok(()),
        false => Err(DownError::Leftovers {
            interface: interface.to_owned(),
            leftovers,
        }),
    }
}

//! Bringing a tunnel down.

use std::path::Path;

use taupe_config::file::{Compatibility, File};
use thiserror::Error;

use crate::journal::{Header, Journal, JournalError, PATIENCE, State};
use crate::linux::Linux;
use crate::machine::{LookError, Machine, SaveError, StepError};
use crate::namespace::Namespace;
use crate::ownership::{is_ours, was_renamed_or_moved};
use crate::report::Report;
use crate::request::NoDevices;
use crate::saved_file;
use crate::steps::{Leftover, list, run_hook};
use crate::teardown::{Teardown, clean_up, recover, roll_back, undo_all};

/// Request to bring a tunnel down.
#[derive(Clone, Copy)]
pub struct Down<'a> {
    /// The interface's name.
    pub interface: &'a str,
    /// The path and the contents of the file, if it exists and is valid. Its commands are run then,
    /// instead of those that it contained when the tunnel was brought up.
    pub file: Option<(&'a Path, &'a File)>,
    /// The problem with the file, if it exists and is invalid.
    pub problem: Option<&'a str>,
    /// The command whose behaviour to follow.
    pub compatibility: Compatibility,
    /// Save the file first if it has `SaveConfig = true`.
    pub save: bool,
}

/// Error of bringing a tunnel down.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DownError {
    /// There is no tunnel of this name.
    #[error("{}", not_up(.interface, *.compatibility))]
    NotUp {
        /// The interface.
        interface: String,
        /// The command whose wording to use.
        compatibility: Compatibility,
    },
    /// The interface of this name is not a tunnel.
    #[error("`{interface}' is not a WireGuard interface")]
    NotWireGuard {
        /// The interface.
        interface: String,
    },
    /// The tunnel is up in another network namespace.
    #[error(
        "{interface} was brought up in another network namespace ({namespace}); run this there"
    )]
    Elsewhere {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: Namespace,
    },
    /// Another program created the interface, and the file is required.
    #[error(
        "another program has made {interface}, and without its file it is not known what else \
         belongs to it{}", .problem.as_ref().map_or_else(String::new, |it| format!("; {it}"))
    )]
    NoFile {
        /// The interface.
        interface: String,
        /// The problem with the file, if there is one.
        problem: Option<String>,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system cannot be examined. Nothing has been undone.
    #[error("{0}; {1} is up still")]
    Look(#[source] LookError, String),
    /// A step failed before anything was undone.
    #[error("`{command}`: {error}; {interface} is up still")]
    Step {
        /// The equivalent command.
        command: String,
        /// The error.
        error: StepError,
        /// The interface.
        interface: String,
    },
    /// The file could not be saved. Nothing has been undone.
    #[error("{error}; {interface} is up still")]
    NotSaved {
        /// The error.
        error: SaveError,
        /// The interface.
        interface: String,
    },
    /// The tunnel is down, except for these leftovers.
    #[error("{interface} is down, but this went wrong:\n  {}", list(.leftovers))]
    Leftovers {
        /// The interface.
        interface: String,
        /// The changes that could not be undone.
        leftovers: Vec<Leftover>,
    },
}

/// Brings the tunnel down, even if its process or an earlier `up` or `down` was killed.
///
/// # Errors
/// See [`DownError`].
pub fn down(request: &Down<'_>, report: &mut dyn Report) -> Result<(), DownError> {
    let state = State::default();
    let mut devices = NoDevices;
    let machine = Linux::new(request.interface, &state, &mut devices);
    let mut machine =
        machine.map_err(|error| DownError::Look(error.into(), request.interface.to_owned()))?;
    down_on(&mut machine, &state, request, report)
}

/// Like [`down`], on a given system.
///
/// # Errors
/// See [`DownError`].
pub fn down_on(
    machine: &mut dyn Machine,
    state: &State,
    request: &Down<'_>,
    report: &mut dyn Report,
) -> Result<(), DownError> {
    let Down {
        interface,
        compatibility,
        ..
    } = *request;
    let lock = state.lock(interface, PATIENCE)?;
    recover(machine, report);
    let name = || interface.to_owned();
    let found = machine.interface();
    let found = found.map_err(|error| DownError::Step {
        command: format!("ip link show dev {interface}"),
        error,
        interface: name(),
    })?;
    let mut journal = lock.journal()?;
    let here = machine.namespace();
    let is_of_another = |journal: &mut Journal| journal.header().namespace != here;
    if let Some(journal) = journal.take_if(is_of_another) {
        if machine.is_gone(&journal.header().namespace) {
            report.note(&format!(
                "the {interface} of {} ended with it",
                journal.header().namespace
            ));
            let leftovers = clean_up(machine, journal, report);
            if leftovers.is_empty() {
                return Ok(());
            }
            return Err(DownError::Leftovers {
                interface: name(),
                leftovers,
            });
        }
        return Err(DownError::Elsewhere {
            interface: name(),
            namespace: journal.header().namespace.clone(),
        });
    }
    let was_renamed_or_moved = match &journal {
        Some(journal) => {
            machine.select_device(journal.interface(), journal.socket());
            was_renamed_or_moved(machine, journal, found)
        }
        None => false,
    };
    let is_stale = |journal: &mut Journal| {
        found.is_some() && !is_ours(journal, found) && !was_renamed_or_moved
    };
    if let Some(stale) = journal.take_if(is_stale) {
        report.note(&format!(
            "the {interface} that was brought up before is gone; undoing what it has left"
        ));
        let leftovers = roll_back(machine, stale, found, false, report);
        if !leftovers.is_empty() {
            return Err(DownError::Leftovers {
                interface: name(),
                leftovers,
            });
        }
        machine.select_device(None, None);
        if !machine.is_wireguard() {
            report.note(&format!("the {interface} that is there now is no tunnel"));
            return Ok(());
        }
    }
    let header = journal.as_ref().map(|journal| journal.header().clone());
    // wg-quick does not record the file of a tunnel.
    let header = header.filter(|_| compatibility == Compatibility::Taupe);
    let file = own_file(request, header.as_ref(), report);
    if let (Some(_), Some(problem)) = (&journal, request.problem) {
        report.note(&format!("{problem}; going by what was there at `up`"));
    }
    let teardown = match &journal {
        Some(journal) => Teardown::of_journal(machine, journal, file, found),
        None if found.is_none() => {
            return Err(DownError::NotUp {
                interface: name(),
                compatibility,
            });
        }
        None if !machine.is_wireguard() => {
            return Err(DownError::NotWireGuard { interface: name() });
        }
        None => {
            let Some((_, file)) = request.file else {
                return Err(DownError::NoFile {
                    interface: name(),
                    problem: request.problem.map(str::to_owned),
                });
            };
            let changes = machine.recognise(file);
            let changes = changes.map_err(|error| DownError::Look(error, name()))?;
            Teardown::of_wg_quick(changes, file, interface)
        }
    };
    let mut leftovers = Vec::new();
    teardown.stand_in(machine, report);
    for hook in &teardown.pre_down {
        match run_hook(machine, hook, interface, report) {
            Ok(()) => {}
            // The commands may have failed because the device is gone.
            Err(leftover) if !teardown.alive => leftovers.push(leftover),
            Err(Leftover { command, error }) => {
                return Err(DownError::Step {
                    command,
                    error,
                    interface: name(),
                });
            }
        }
    }
    if request.save {
        let saved = save_first(machine, request, file, header, teardown.alive, report);
        saved.map_err(|error| DownError::NotSaved {
            error,
            interface: name(),
        })?;
    }
    let _ = machine.stand_in(None);
    leftovers.extend(undo_all(
        machine,
        journal,
        &teardown.changes,
        interface,
        report,
    ));
    teardown.stand_in(machine, report);
    for hook in &teardown.post_down {
        leftovers.extend(run_hook(machine, hook, interface, report).err());
    }
    let _ = machine.stand_in(None);
    if leftovers.is_empty() {
        return Ok(());
    }
    Err(DownError::Leftovers {
        interface: name(),
        leftovers,
    })
}

/// Returns the file, unless the tunnel was made from another one.
fn own_file<'a>(
    request: &Down<'a>,
    header: Option<&Header>,
    report: &mut dyn Report,
) -> Option<(&'a Path, &'a File)> {
    let (config, file) = request.file?;
    match header.filter(|header| !header.is_of(config)) {
        None => Some((config, file)),
        Some(header) => {
            report.note(&format!(
                "{} was made from {}, not from {}: going by what was there at `up`",
                request.interface,
                header.config.display(),
                config.display()
            ));
            None
        }
    }
}

/// Saves the file if it has `SaveConfig`, or reports why it is not saved.
fn save_first(
    machine: &mut dyn Machine,
    request: &Down<'_>,
    file: Option<(&Path, &File)>,
    header: Option<Header>,
    alive: bool,
    report: &mut dyn Report,
) -> Result<(), SaveError> {
    let interface = request.interface;
    let Some((config, file)) = file else {
        if let Some(Header { config, .. }) = header.filter(|header| header.save_config) {
            report.note(&format!("{} is not saved", config.display()));
        }
        return Ok(());
    };
    if !file.interface.save_config {
        return Ok(());
    }
    if header.is_some_and(|header| header.is_edited()) {
        report.note(&format!(
            "{} has been edited since {interface} was made from it: it stays as it is, and what \
             the device has learned is not saved",
            config.display()
        ));
        return Ok(());
    }
    if !alive {
        report.note(&format!(
            "{} is not saved: the device that knew more has ended",
            config.display()
        ));
        return Ok(());
    }
    report.step(&saved_file::command(interface));
    machine.save(file, config, request.compatibility)
}

fn not_up(interface: &str, compatibility: Compatibility) -> String {
    match compatibility {
        Compatibility::WgQuick => format!("`{interface}' is not a WireGuard interface"),
        Compatibility::Taupe => format!("{interface} is not up"),
    }
}

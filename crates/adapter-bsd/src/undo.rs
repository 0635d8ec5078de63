//! Undoing the changes that outlive the device.

use std::fmt;

use taupe_os_bsd::System;

use crate::dns;
use crate::journal::{Journal, JournalError, LastingChange};
use crate::machine::{Machine, Report, SnapshotRequest, StepError};
use crate::route::TunnelRoute;
use crate::snapshot::{Snapshot, hop_of};

/// A change that could not be undone.
#[derive(Debug)]
pub struct Leftover {
    /// The command that would undo it.
    pub command: String,
    /// The error.
    pub error: LeftoverError,
}

/// Error of undoing a change.
#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    /// The system refused.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            LeftoverError::Step(error) => f.write_str(&error.of_step(&self.command)),
            LeftoverError::Journal(error) => write!(f, "`{}`: {error}", self.command),
        }
    }
}

/// Formats leftovers, one a line.
pub(crate) fn list(leftovers: &[Leftover]) -> String {
    let lines: Vec<String> = leftovers.iter().map(Leftover::to_string).collect();
    lines.join("\n  ")
}

/// Undoes all changes of a journal from last to first, and removes it if nothing is left. `is_stale`
/// is true for a journal of an earlier boot, which has ended the routes.
pub(crate) fn undo_all(
    machine: &mut dyn Machine,
    mut journal: Journal,
    is_stale: bool,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let outlives_boot = |change: &LastingChange| matches!(change, LastingChange::Service(_));
    let changes = journal.changes().rev();
    let changes: Vec<_> = changes.map(|(number, it)| (number, it.clone())).collect();
    let mut leftovers = Vec::new();
    let mut present = None;
    // Routes are undone even if network services cannot be listed.
    let mut unlisted = None;
    if changes.iter().any(|(_, it)| !is_stale || outlives_boot(it)) {
        let services = changes.iter().any(|(_, it)| outlives_boot(it));
        let fib = journal.header().fib;
        let looked = look(machine, fib, services).or_else(|error| match services {
            true => {
                unlisted = Some(error.to_string());
                look(machine, fib, false)
            }
            false => Err(error),
        });
        match looked {
            Ok(snapshot) => present = Some(snapshot),
            Err(error) => {
                return vec![Leftover {
                    command: "netstat -rn".to_owned(),
                    error: error.into(),
                }];
            }
        }
    }
    for (number, change) in changes {
        let undone = match (&present, &unlisted) {
            (Some(_), Some(error)) if outlives_boot(&change) => {
                Err(StepError::Device(error.clone()))
            }
            (Some(present), _) if !is_stale || outlives_boot(&change) => {
                undo(machine, &change, journal.header().fib, present, report)
            }
            _ => Ok(()),
        };
        let undone = undone.map_err(LeftoverError::from);
        let recorded = undone.and_then(|()| Ok(journal.undone(number)?));
        if let Err(error) = recorded {
            let command = commands(&change).join("; ");
            leftovers.push(Leftover { command, error });
        }
    }
    if leftovers.is_empty()
        && let Err(error) = journal.remove()
    {
        leftovers.push(Leftover {
            command: "rm".to_owned(),
            error: error.into(),
        });
    }
    leftovers
}

/// Returns the present state of the system. Its routes are those of the tunnel's FIB, which need not be
/// that of this process.
fn look(machine: &mut dyn Machine, fib: u32, services: bool) -> Result<Snapshot, StepError> {
    let mut request = SnapshotRequest {
        services,
        ..SnapshotRequest::default()
    };
    let snapshot = machine.snapshot(request)?;
    if snapshot.system == System::MacOs || snapshot.fibs.own == fib {
        return Ok(snapshot);
    }
    request.fib = Some(fib);
    let mut snapshot = machine.snapshot(request)?;
    snapshot.routes = std::mem::take(&mut snapshot.fib_routes);
    Ok(snapshot)
}

/// Undoes one change in the present state of the system. Succeeds if it is gone already, or if
/// another program has replaced it.
fn undo(
    machine: &mut dyn Machine,
    change: &LastingChange,
    fib: u32,
    present: &Snapshot,
    report: &mut dyn Report,
) -> Result<(), StepError> {
    match change {
        LastingChange::Route(route) => {
            if is_present(present, route) {
                let mut route = route.clone();
                route.fib = (present.fibs.own != fib).then_some(fib);
                report.step(&route.command("delete", ""));
                machine.delete_route(&route)?;
            }
        }
        LastingChange::Resolvconf(device) => {
            let command = dns::remove(device);
            report.step(&command);
            machine.run(&command)?;
        }
        LastingChange::Service(service) => {
            let mut services = present.services.iter();
            let exists = services.any(|it| it.name == service.name);
            // The user may have deleted the service.
            if exists && !present.services.contains(service) {
                for command in dns::set_service(service) {
                    report.step(&command);
                    let printed = machine.run(&command)?;
                    if let Some(error) = dns::service_error(&printed) {
                        let (command, outcome) = (command.to_string(), error.to_owned());
                        return Err(StepError::Command { command, outcome });
                    }
                }
            }
        }
    }
    Ok(())
}

/// Returns true if the process's table has exactly this route.
pub(crate) fn is_present(snapshot: &Snapshot, route: &TunnelRoute) -> bool {
    let mut routes = snapshot.routes.iter();
    routes.any(|entry| {
        snapshot.is_usual(entry)
            && entry.route.destination == route.destination
            && hop_of(snapshot, entry) == route.hop
    })
}

fn commands(change: &LastingChange) -> Vec<String> {
    match change {
        LastingChange::Route(route) => vec![route.command("delete", "").to_string()],
        LastingChange::Resolvconf(device) => vec![dns::remove(device).to_string()],
        LastingChange::Service(service) => {
            let commands = dns::set_service(service);
            commands.iter().map(ToString::to_string).collect()
        }
    }
}

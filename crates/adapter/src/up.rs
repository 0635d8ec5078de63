//! Bringing a tunnel up.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use taupe_config::file::Compatibility;
use thiserror::Error;

use crate::barrier::Barrier;
use crate::change::{Change, Phase};
use crate::comparison::{Deviation, Drift};
use crate::journal::{Header, Journal, JournalError, Lock, State};
use crate::linux::Linux;
use crate::machine::{Machine, StepError};
use crate::namespace::Namespace;
use crate::ownership::{is_ours, was_renamed_or_moved};
use crate::plan;
use crate::report::Report;
use crate::request::{Devices, Request};
use crate::setting::Setting;
use crate::step_table::Stage;
use crate::steps::{ApplyError, Leftover, apply_step, list, undo_step};
use crate::teardown::{clean_up, recover, roll_back, roll_back_to};
use crate::verify;

/// Time to wait for the lock, which `taupe status` holds for a moment ([`State::killed`]).
const MOMENT: Duration = Duration::from_millis(200);

/// Error of bringing a tunnel up. Unless leftovers are listed, everything is as before.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UpError {
    /// The tunnel is up already.
    #[error("{}", already_up(.interface, .config, .outer.as_deref(), *.since, *.compatibility))]
    AlreadyUp {
        /// The interface.
        interface: String,
        /// The file that it was made from.
        config: PathBuf,
        /// The name of the tunnel through which it is routed.
        outer: Option<String>,
        /// The time at which `up` started.
        since: SystemTime,
        /// The command whose wording to use.
        compatibility: Compatibility,
    },
    /// Another program has an interface of this name.
    #[error("{}", exists(.interface, *.is_wireguard, *.compatibility))]
    Exists {
        /// The interface.
        interface: String,
        /// True if it is a WireGuard device.
        is_wireguard: bool,
        /// The command whose wording to use.
        compatibility: Compatibility,
    },
    /// The tunnel is up in another network namespace.
    #[error(
        "{interface} was brought up in another network namespace ({namespace}) and not taken \
         down"
    )]
    Elsewhere {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: Namespace,
        /// Its journal.
        journal: PathBuf,
    },
    /// The leftovers of a killed tunnel cannot be undone.
    #[error(
        "the previous tunnel {interface} was killed, and some of its changes cannot be undone:\n  {}", list(.leftovers)
    )]
    Leftovers {
        /// The interface.
        interface: String,
        /// The changes that could not be undone.
        leftovers: Vec<Leftover>,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system cannot be examined.
    #[error("{0}")]
    Look(#[source] StepError),
    /// A step failed.
    #[error("{cause}{}", outcome(.leftovers, *.is_blocked))]
    Failed {
        /// The error.
        cause: Box<ApplyError>,
        /// The changes that could not be undone.
        leftovers: Vec<Leftover>,
        /// True if the barrier of a killed tunnel was there before, and blocks traffic still.
        is_blocked: bool,
    },
}

/// Brings the tunnel up. On success the tunnel is usable: the device is configured, and its
/// addresses, routes and name servers are set. After an error all executed steps have been undone.
///
/// # Errors
/// See [`UpError`].
pub fn up(
    request: &Request<'_>,
    devices: &mut dyn Devices,
    report: &mut dyn Report,
) -> Result<(), UpError> {
    let state = State::default();
    let machine = Linux::new(request.interface, &state, devices);
    let mut machine = machine.map_err(|error| UpError::Look(error.into()))?;
    machine.set_outer(request.outer);
    up_on(&mut machine, &state, request, report)
}

/// Like [`up`], on a given system.
///
/// # Errors
/// See [`UpError`].
pub fn up_on(
    machine: &mut dyn Machine,
    state: &State,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Result<(), UpError> {
    let lock = state.lock(request.interface, MOMENT)?;
    recover(machine, report);
    let barrier = prepare(machine, &lock, request, report)?;
    let header = Header::new(request, machine.namespace());
    let (mut journal, barrier) = match barrier {
        None => (lock.begin(header)?, None),
        Some((mut journal, mut barrier)) => {
            barrier.begin(&mut journal, header)?;
            (journal, Some(barrier))
        }
    };
    let applied = apply_all(machine, &mut journal, barrier.as_ref(), request, report);
    applied.map_err(|cause| {
        // After a failed `up`, wg-quick deletes the interface and runs no PreDown and PostDown.
        let with_hooks = request.compatibility == Compatibility::Taupe;
        let found = machine.interface().ok().flatten();
        let is_blocked = barrier.is_some();
        let leftovers = match barrier {
            None => roll_back(machine, journal, found, with_hooks, report),
            Some(mut barrier) => {
                barrier.restore(machine, &mut journal, report);
                roll_back_to(&barrier, machine, &mut journal, found, report)
            }
        };
        UpError::Failed {
            cause: Box::new(cause),
            leftovers,
            is_blocked,
        }
    })
}

/// Undoes the leftovers of an earlier tunnel of this name. If its barrier can stay until the tunnel is
/// up, returns it with its journal. Fails if that tunnel is up, or if the interface belongs to another
/// program.
fn prepare(
    machine: &mut dyn Machine,
    lock: &Lock,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Result<Option<(Journal, Barrier)>, UpError> {
    let Request {
        interface,
        compatibility,
        ..
    } = *request;
    let mut found = machine.interface().map_err(UpError::Look)?;
    let exists = |machine: &mut dyn Machine| UpError::Exists {
        interface: interface.to_owned(),
        is_wireguard: machine.is_wireguard(),
        compatibility,
    };
    let Some(journal) = lock.journal()? else {
        return found.map_or(Ok(None), |_| Err(exists(machine)));
    };
    let header = journal.header();
    if header.namespace != machine.namespace() {
        if machine.is_gone(&header.namespace) {
            return match found {
                Some(_) => Err(exists(machine)),
                None => discard_stale(machine, journal, request, report).map(|()| None),
            };
        }
        return Err(UpError::Elsewhere {
            interface: interface.to_owned(),
            namespace: header.namespace.clone(),
            journal: lock.journal_path().to_owned(),
        });
    }
    if journal.is_complete() && is_ours(&journal, found) {
        found = machine.interface_if_alive().map_err(UpError::Look)?;
    }
    let is_ours = is_ours(&journal, found) || was_renamed_or_moved(machine, &journal, found);
    if journal.is_complete() && is_ours {
        return Err(UpError::AlreadyUp {
            interface: interface.to_owned(),
            config: header.config.clone(),
            outer: header.outer.as_ref().map(|outer| outer.name.clone()),
            since: header.since(),
            compatibility,
        });
    }
    if found.is_some() && !is_ours {
        // An apparent leftover of the previous tunnel may be the other program's: the kernel does not
        // record who made a rule or a firewall table.
        return Err(exists(machine));
    }
    machine.select_device(journal.interface(), journal.socket());
    let barrier = Barrier::of(&journal, request);
    if journal.changes().next().is_some() {
        let meanwhile = match barrier {
            Some(_) => "its traffic stays blocked until it is up again",
            None if journal.blocks() => {
                "undoing what it has left; traffic leaves outside the tunnel until it is up again"
            }
            None => "undoing what it has left",
        };
        report.note(&format!("the last {interface} was killed: {meanwhile}"));
    }
    let (leftovers, barrier) = match barrier {
        None => (roll_back(machine, journal, found, true, report), None),
        Some(barrier) => {
            let mut journal = journal;
            let leftovers = roll_back_to(&barrier, machine, &mut journal, found, report);
            (leftovers, Some((journal, barrier)))
        }
    };
    if leftovers.is_empty() {
        return Ok(barrier);
    }
    Err(UpError::Leftovers {
        interface: interface.to_owned(),
        leftovers,
    })
}

/// Removes the journal of a network namespace that has ended. Undoes only the change of
/// name servers: routes and rules of this namespace that equal those in the journal belong to
/// another tunnel.
fn discard_stale(
    machine: &mut dyn Machine,
    journal: Journal,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Result<(), UpError> {
    let interface = request.interface;
    report.note(&format!(
        "the last {interface} ended with its network namespace, {}",
        journal.header().namespace
    ));
    let leftovers = clean_up(machine, journal, report);
    if leftovers.is_empty() {
        return Ok(());
    }
    Err(UpError::Leftovers {
        interface: interface.to_owned(),
        leftovers,
    })
}

/// Applies all steps. Steps of the barrier that the tunnel does not have are undone before the PostUp
/// commands.
fn apply_all(
    machine: &mut dyn Machine,
    journal: &mut Journal,
    barrier: Option<&Barrier>,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Result<(), ApplyError> {
    let Request {
        interface,
        file,
        compatibility,
        options,
        ..
    } = *request;
    // No device of an earlier process is left: the following steps find the interface by its name.
    machine.select_device(None, None);
    // PreUp commands run first because they may prepare the system: add routes, or connect to the
    // network that resolves names.
    for hook in plan::hooks(Phase::PreUp, &file.interface.hooks.pre_up, interface) {
        apply_step(machine, journal, interface, &Change::Hook(hook), report)?;
    }
    let own = barrier.map_or(&[][..], |barrier| &barrier.own);
    machine.set_known_endpoints(barrier.and_then(|barrier| barrier.device.clone()));
    let snapshot = machine.look(file, own, report)?;
    let plan = plan::plan(interface, file, &snapshot, compatibility, options)?;
    for note in &plan.notes {
        report.plan_note(note);
    }
    let is_before_hooks = |change: &Change| change.step().stage < Stage::PostUp;
    let first_hook = plan.changes.partition_point(is_before_hooks);
    let (steps, hooks) = plan.changes.split_at(first_hook);
    let (kept, gone) = barrier
        .map(|barrier| barrier.compare(&plan.changes))
        .unzip();
    for change in steps {
        if let Some(kept) = &kept {
            let step_error = |error| ApplyError::Step {
                command: change.command(interface).to_string(),
                error,
            };
            if kept.ensure(machine, change).map_err(step_error)? {
                continue;
            }
        }
        apply_step(machine, journal, interface, change, report)?;
        if let (Change::Device, Ok(Some(index))) = (change, machine.interface()) {
            journal.record_interface(index)?;
            let socket = machine.socket();
            if let Some(socket) = socket {
                journal.record_socket(socket)?;
            }
            machine.select_device(Some(index), socket);
        }
    }
    let is_compared = compatibility == Compatibility::Taupe || !hooks.is_empty();
    let applied = is_compared.then(|| journal.applied());
    // If the system cannot be examined now, `status` reports differences later.
    let gone = gone.unwrap_or_default();
    let before = applied.and_then(|applied| {
        let found = verify::differences(machine, applied, journal.interface());
        let mut drifts = found.ok()?.drifts;
        drifts.retain(|drift| gone.iter().all(|(number, _)| *number != drift.number));
        Some(drifts)
    });
    if compatibility == Compatibility::Taupe {
        confirm(before.as_deref().unwrap_or_default(), interface)?;
    }
    if let Some(device) = machine.device() {
        journal.record_device(&device)?;
    }
    for (number, change) in gone.into_iter().rev() {
        match undo_step(machine, &change, interface, report) {
            // A journal that cannot be written does no harm, because undoing a step twice has no effect.
            Ok(()) => drop(journal.undone(number)),
            Err(leftover) => report.note(&leftover.to_string()),
        }
    }
    for hook in hooks {
        apply_step(machine, journal, interface, hook, report)?;
    }
    match &before {
        Some(before) if !hooks.is_empty() => {
            verify::note_alterations(machine, journal, before, report)?;
        }
        _ => journal.record_bypasses(plan.bypasses.clone())?,
    }
    journal.completed()?;
    Ok(())
}

/// Fails if a later step has undone an earlier one. The system may remove addresses and routes
/// without an error, and packets for the tunnel would leave through the uplink.
fn confirm(drifts: &[Drift], interface: &str) -> Result<(), ApplyError> {
    let is_lost = |drift: &&Drift| {
        let directs_packets = matches!(
            drift.change.step().setting,
            Some(Setting::Addresses | Setting::Routes | Setting::Rules)
        );
        directs_packets && drift.deviation == Deviation::Removed
    };
    match drifts.iter().find(is_lost) {
        None => Ok(()),
        Some(drift) => Err(ApplyError::Lost {
            command: drift.change.command(interface).to_string(),
        }),
    }
}

fn outcome(leftovers: &[Leftover], is_blocked: bool) -> String {
    if leftovers.is_empty() && is_blocked {
        return "; traffic stays blocked, as after the end of the last tunnel".to_owned();
    }
    if leftovers.is_empty() {
        return "; everything is as it was before".to_owned();
    }
    let list = list(leftovers);
    format!("; of what had been done, this could not be undone:\n  {list}")
}

fn already_up(
    interface: &str,
    config: &std::path::Path,
    outer: Option<&str>,
    since: SystemTime,
    compatibility: Compatibility,
) -> String {
    if compatibility == Compatibility::WgQuick {
        return exists(interface, true, compatibility);
    }
    let config = config.display();
    let through = outer.map_or_else(String::new, |outer| format!(", through {outer}"));
    let ago = SystemTime::now().duration_since(since).unwrap_or_default();
    format!(
        "{interface} is up already, begun {} from {config}{through}",
        Ago(ago)
    )
}

fn exists(interface: &str, is_wireguard: bool, compatibility: Compatibility) -> String {
    match compatibility {
        Compatibility::WgQuick => format!("`{interface}' already exists"),
        Compatibility::Taupe if !is_wireguard => format!(
            "there is an interface {interface} already, which is no WireGuard tunnel; give the \
             file another name"
        ),
        Compatibility::Taupe => {
            format!("there is an interface {interface} already, which another program has made")
        }
    }
}

/// A duration, formatted in its largest unit.
struct Ago(Duration);

impl std::fmt::Display for Ago {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs();
        let (count, unit) = match seconds {
            0..60 => (seconds, "second"),
            60..3600 => (seconds / 60, "minute"),
            3600..86400 => (seconds / 3600, "hour"),
            _ => (seconds / 86400, "day"),
        };
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} {unit}{plural} ago")
    }
}

//! Bringing a tunnel up.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use thiserror::Error;

use crate::change::{Change, Phase};
use crate::down::{come_down, come_home};
use crate::journal::{self, Header, Journal, Lock, State};
use crate::linux::Linux;
use crate::machine::{LookError, Machine, StepError};
use crate::namespace::Namespace;
use crate::plan::{self, PlanError};
use crate::verify;
use crate::{Devices, Leftover, Personality, Report, Request, list, tell};

/// Why a tunnel is not up, or not anew. Unless leftovers are listed, everything
/// is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UpError {
    /// It is up.
    #[error("{}", already_up(.interface, .config, .outer.as_deref(), *.since, *.personality))]
    AlreadyUp {
        /// The interface.
        interface: String,
        /// The file that it was made from.
        config: PathBuf,
        /// The name of the tunnel that it goes through.
        outer: Option<String>,
        /// Since when.
        since: SystemTime,
        /// Whose words are used.
        personality: Personality,
    },
    /// Somebody else has an interface of this name.
    #[error("{}", exists(.interface, *.is_wireguard, *.personality))]
    Exists {
        /// The interface.
        interface: String,
        /// It is a WireGuard device.
        is_wireguard: bool,
        /// Whose words are used.
        personality: Personality,
    },
    /// It is up in another network namespace.
    #[error(
        "{interface} was brought up in another network namespace ({namespace}) and not taken \
         down; run `taupe down` there, or remove {} if that namespace is gone", .journal.display()
    )]
    Elsewhere {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: Namespace,
        /// Its journal.
        journal: PathBuf,
    },
    /// What a tunnel that was killed has left cannot be undone.
    #[error(
        "the last {interface} was killed, and this of it cannot be undone:\n  {}", list(.leftovers)
    )]
    Leftovers {
        /// The interface.
        interface: String,
        /// What is left.
        leftovers: Vec<Leftover>,
    },
    /// The journal.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// The system cannot be looked at.
    #[error("{0}")]
    Look(#[source] StepError),
    /// Something went wrong on the way.
    #[error("{cause}{}", outcome(.leftovers))]
    Failed {
        /// What.
        cause: Cause,
        /// What could not be undone.
        leftovers: Vec<Leftover>,
    },
}

/// What went wrong on the way up.
#[derive(Debug, Error)]
pub enum Cause {
    /// Something that has to be known first.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The file asks for what there is not.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step could not be written down.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// A step.
    #[error("`{command}`: {error}")]
    Step {
        /// The command that it is like.
        command: String,
        /// Why it was not taken.
        error: StepError,
    },
    /// The system has taken a step back.
    #[error(
        "`{command}` did not last: a later step, or another program on this system, has removed \
         what it made"
    )]
    Lost {
        /// The command that the step is like.
        command: String,
    },
    /// The person wanted it to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Brings the tunnel up. When this returns without an error, it is usable: the
/// device is configured, and its addresses, routes and name servers are there.
/// Otherwise everything that was done has been undone.
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
    machine.go_through(request.outer);
    up_on(&mut machine, &state, request, report)
}

/// [`up`] on a given system.
///
/// # Errors
/// See [`UpError`].
pub fn up_on(
    machine: &mut dyn Machine,
    state: &State,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Result<(), UpError> {
    let lock = state.lock(request.interface, Duration::ZERO)?;
    recover(machine, report);
    settle_past(machine, &lock, request, report)?;
    let mut journal = lock.begin(Header::new(request, machine.namespace()))?;
    climb(machine, &mut journal, request, report).map_err(|cause| {
        // wg-quick deletes the interface and runs no commands.
        let with_hooks = request.personality == Personality::Taupe;
        let found = machine.interface().ok().flatten();
        let leftovers = come_down(machine, journal, found, with_hooks, report);
        UpError::Failed { cause, leftovers }
    })
}

/// Puts name servers right that a restart has left wrong. Failing that, what
/// follows may still work.
pub(crate) fn recover(machine: &mut dyn Machine, report: &mut dyn Report) {
    match machine.recover() {
        Ok(note) => note.iter().for_each(|note| report.note(note)),
        Err(error) => report.note(&error.to_string()),
    }
}

/// Sees to it that nothing of an earlier tunnel of this name is left.
fn settle_past(
    machine: &mut dyn Machine,
    lock: &Lock,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Result<(), UpError> {
    let Request {
        interface,
        personality,
        ..
    } = *request;
    let mut found = machine.interface().map_err(UpError::Look)?;
    let exists = |machine: &mut dyn Machine| UpError::Exists {
        interface: interface.to_owned(),
        is_wireguard: machine.is_wireguard(),
        personality,
    };
    let Some(journal) = lock.journal()? else {
        return found.map_or(Ok(()), |_| Err(exists(machine)));
    };
    let header = journal.header();
    if header.namespace != machine.namespace() {
        if machine.is_gone(&header.namespace) {
            return match found {
                Some(_) => Err(exists(machine)),
                None => bury(machine, journal, request, report),
            };
        }
        return Err(UpError::Elsewhere {
            interface: interface.to_owned(),
            namespace: header.namespace.clone(),
            journal: lock.journal_path().to_owned(),
        });
    }
    if journal.is_complete() && is_ours(&journal, found) {
        found = machine.interface_of_living().map_err(UpError::Look)?;
    }
    let is_ours = is_ours(&journal, found) || lives_elsewhere(machine, &journal, found);
    if journal.is_complete() && is_ours {
        return Err(UpError::AlreadyUp {
            interface: interface.to_owned(),
            config: header.config.clone(),
            outer: header.outer.as_ref().map(|outer| outer.name.clone()),
            since: header.since(),
            personality,
        });
    }
    if found.is_some() && !is_ours {
        // Even what our last one has left may be the other's by now: rules and
        // firewall tables have no owner.
        return Err(exists(machine));
    }
    machine.follow(journal.interface(), journal.socket());
    if journal.changes().next().is_some() {
        report.note(&format!(
            "the last {interface} was killed: undoing what it has left"
        ));
    }
    let leftovers = come_down(machine, journal, found, true, report);
    if leftovers.is_empty() {
        return Ok(());
    }
    Err(UpError::Leftovers {
        interface: interface.to_owned(),
        leftovers,
    })
}

/// Ends a journal of a network namespace that is gone, with all but the name
/// servers: routes and rules that look alike here are another tunnel's.
fn bury(
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
    let leftovers = come_home(machine, journal, report);
    if leftovers.is_empty() {
        return Ok(());
    }
    Err(UpError::Leftovers {
        interface: interface.to_owned(),
        leftovers,
    })
}

/// Whether the interface that was found is the one that the journal is about.
/// One whose number was not written down any more is: the name was free.
pub(crate) fn is_ours(journal: &Journal, found: Option<u32>) -> bool {
    found.is_some_and(|found| journal.interface().is_none_or(|index| index == found))
}

/// Checks whether the journal's device is there, though no interface of the tunnel's name
/// is its own: that has been renamed, or moved to another network namespace.
pub(crate) fn lives_elsewhere(
    machine: &mut dyn Machine,
    journal: &Journal,
    found: Option<u32>,
) -> bool {
    let socket = journal.socket();
    !is_ours(journal, found) && socket.is_some_and(|socket| machine.lives(socket))
}

/// All the steps.
fn climb(
    machine: &mut dyn Machine,
    journal: &mut Journal,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Result<(), Cause> {
    let Request {
        interface,
        file,
        personality,
        options,
        ..
    } = *request;
    // Nothing of an earlier device is left.
    machine.follow(None, None);
    // Before anything is looked at, as they may be what makes it so: routes,
    // or a network by which names can be resolved.
    for hook in plan::hooks(Phase::PreUp, &file.interface.hooks.pre_up, interface) {
        take(machine, journal, interface, &Change::Hook(hook), report)?;
    }
    let snapshot = machine.look(file, &[], report)?;
    let plan = plan::plan(interface, file, &snapshot, personality, options)?;
    for note in &plan.notes {
        report.note(note);
    }
    let is_hook = |change: &Change| matches!(change, Change::Hook(_));
    let first_hook = plan.changes.iter().position(is_hook);
    let (steps, hooks) = plan
        .changes
        .split_at(first_hook.unwrap_or(plan.changes.len()));
    for change in steps {
        take(machine, journal, interface, change, report)?;
        if let (Change::Device, Ok(Some(index))) = (change, machine.interface()) {
            journal.has_interface(index)?;
            let socket = machine.socket();
            if let Some(socket) = socket {
                journal.has_socket(socket)?;
            }
            machine.follow(Some(index), socket);
        }
    }
    let is_compared = personality == Personality::Taupe || !hooks.is_empty();
    let applied = is_compared.then(|| journal.applied());
    // A system that cannot be looked at now is judged by `status`.
    let before = applied.and_then(|applied| {
        let found = verify::differences(machine, applied, journal.interface());
        Some(found.ok()?.drifts)
    });
    if personality == Personality::Taupe {
        confirm(before.as_deref().unwrap_or_default(), interface)?;
    }
    if let Some(device) = machine.device() {
        journal.has_device(device)?;
    }
    for hook in hooks {
        take(machine, journal, interface, hook, report)?;
    }
    match &before {
        Some(before) if !hooks.is_empty() => {
            verify::note_alterations(machine, journal, before, report)?;
        }
        _ => journal.has_bypasses(plan.bypasses.clone())?,
    }
    journal.completed()?;
    Ok(())
}

/// Fails if a later step has undone an earlier one: the system may remove addresses and
/// routes without an error, and packets for the tunnel would leave by the uplink.
fn confirm(drifts: &[verify::Drift], interface: &str) -> Result<(), Cause> {
    let is_lost = |drift: &&verify::Drift| {
        let leads = matches!(
            drift.change,
            Change::Address(_)
                | Change::Route { .. }
                | Change::Unreachable { .. }
                | Change::Special { .. }
                | Change::Rule(_)
        );
        leads && drift.deviation == verify::Deviation::Removed
    };
    match drifts.iter().find(is_lost) {
        None => Ok(()),
        Some(drift) => Err(Cause::Lost {
            command: drift.change.command(interface).to_string(),
        }),
    }
}

/// One step. What turns out to be there already is not ours to undo.
pub(crate) fn take(
    machine: &mut dyn Machine,
    journal: &mut Journal,
    interface: &str,
    change: &Change,
    report: &mut dyn Report,
) -> Result<(), Cause> {
    if report.is_interrupted() {
        return Err(Cause::Interrupted);
    }
    let number = journal.next();
    journal.record(change)?;
    let command = machine.command(change, interface);
    tell(report, change, &command);
    machine.apply(change).map_err(|error| {
        if is_somebody_elses(&error) {
            // A journal that cannot be written any more still has it undone.
            let _ = journal.undone(number);
        }
        match error {
            // The signal that the person has sent has ended it, not the file.
            StepError::Hook { .. } if report.is_interrupted() => Cause::Interrupted,
            error => Cause::Step { command, error },
        }
    })
}

/// Whether a step failed because what it would make is there already. Then
/// somebody else has made it, and relies on it.
pub(crate) fn is_somebody_elses(error: &StepError) -> bool {
    let exists = rustix::io::Errno::EXIST.raw_os_error();
    matches!(error, StepError::System(error) if error.errno() == Some(exists))
}

fn outcome(leftovers: &[Leftover]) -> String {
    if leftovers.is_empty() {
        return "; everything is as it was before".to_owned();
    }
    let list = list(leftovers);
    format!(
        "; of what had been done, this could not be undone (`taupe down` tries again):\n  {list}"
    )
}

fn already_up(
    interface: &str,
    config: &std::path::Path,
    outer: Option<&str>,
    since: SystemTime,
    personality: Personality,
) -> String {
    if personality == Personality::WgQuick {
        return exists(interface, true, personality);
    }
    let config = config.display();
    let through = outer.map_or_else(String::new, |outer| format!(", through {outer}"));
    let ago = SystemTime::now().duration_since(since).unwrap_or_default();
    format!(
        "{interface} is up already, begun {} from {config}{through}; `taupe reload` makes it what its \
         file says now, `taupe down` ends it",
        Ago(ago)
    )
}

fn exists(interface: &str, is_wireguard: bool, personality: Personality) -> String {
    match personality {
        Personality::WgQuick => format!("`{interface}' already exists"),
        Personality::Taupe if !is_wireguard => format!(
            "there is an interface {interface} already, which is no WireGuard tunnel; give the \
             file another name"
        ),
        Personality::Taupe => format!(
            "there is an interface {interface} that `taupe up` has not made; give the file another \
             name, or remove the interface (`wg-quick down {interface}` if wg-quick made it, \
             otherwise `ip link delete {interface}`)"
        ),
    }
}

/// A duration in its largest unit.
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

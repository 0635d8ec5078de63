//! Taking a tunnel down.

use std::path::Path;
use std::time::Duration;

use taupe_config::file::File;
use thiserror::Error;

use crate::change::{Change, Hook, Phase};
use crate::journal::{self, Header, Journal, State};
use crate::last_state::LastState;
use crate::linux::Linux;
use crate::machine::{LookError, Machine, SaveError, StepError};
use crate::namespace::Namespace;
use crate::up::{is_ours, lives_elsewhere, recover};
use crate::{Devices, Leftover, Personality, Report, list, tell};
use crate::{plan, save};

/// How long another process may take that is at the same tunnel.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A tunnel that is to end.
#[derive(Clone, Copy)]
pub struct Down<'a> {
    /// The interface's name.
    pub interface: &'a str,
    /// The file and what it says, if there is one and it is in order: its
    /// commands are run then, rather than those that were in it when the tunnel
    /// was brought up.
    pub file: Option<(&'a Path, &'a File)>,
    /// What is wrong with the file, if it is there and not in order.
    pub problem: Option<&'a str>,
    /// Whose habits are followed.
    pub personality: Personality,
    /// With `SaveConfig = true` the file is written first.
    pub save: bool,
}

/// Why a tunnel is not down, or not all of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DownError {
    /// There is no tunnel of this name.
    #[error("{}", not_up(.interface, *.personality))]
    NotUp {
        /// The interface.
        interface: String,
        /// Whose words are used.
        personality: Personality,
    },
    /// There is an interface of this name that is no tunnel.
    #[error("`{interface}' is not a WireGuard interface")]
    NotWireGuard {
        /// The interface.
        interface: String,
    },
    /// It is up in another network namespace.
    #[error(
        "{interface} was brought up in another network namespace ({namespace}); run this there"
    )]
    Elsewhere {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: Namespace,
    },
    /// Another program made it, and its file is needed.
    #[error(
        "`taupe up` has not made {interface}, and without its file it is not known what else \
         belongs to it; {}", .problem.as_deref().unwrap_or("name the file")
    )]
    NoFile {
        /// The interface.
        interface: String,
        /// What is wrong with the file, if there is one.
        problem: Option<String>,
    },
    /// The journal.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// The system cannot be looked at. Nothing has been undone.
    #[error("{0}; {1} is up still")]
    Look(#[source] LookError, String),
    /// A step before anything was undone.
    #[error("`{command}`: {error}; {interface} is up still")]
    Step {
        /// The command that it is like.
        command: String,
        /// Why it was not taken.
        error: StepError,
        /// The interface.
        interface: String,
    },
    /// The file could not be written. Nothing has been undone.
    #[error(
        "{error}; {interface} is up still; `taupe down --no-save` gives up what it has learned"
    )]
    NotSaved {
        /// Why.
        error: SaveError,
        /// The interface.
        interface: String,
    },
    /// It is down, but for this.
    #[error("{interface} is down, but this went wrong:\n  {}", list(.leftovers))]
    Leftovers {
        /// The interface.
        interface: String,
        /// What is left.
        leftovers: Vec<Leftover>,
    },
}

/// Takes the tunnel down, whoever has died since it was brought up.
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

/// [`down`] on a given system.
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
        personality,
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
            let leftovers = come_home(machine, journal, report);
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
    let lives_elsewhere = match &journal {
        Some(journal) => {
            machine.follow(journal.interface(), journal.socket());
            lives_elsewhere(machine, journal, found)
        }
        None => false,
    };
    let is_stale =
        |journal: &mut Journal| found.is_some() && !is_ours(journal, found) && !lives_elsewhere;
    if let Some(stale) = journal.take_if(is_stale) {
        report.note(&format!(
            "the {interface} that `taupe up` has made is gone; undoing what it has left"
        ));
        let leftovers = come_down(machine, stale, found, false, report);
        if !leftovers.is_empty() {
            return Err(DownError::Leftovers {
                interface: name(),
                leftovers,
            });
        }
        machine.follow(None, None);
        if !machine.is_wireguard() {
            report.note(&format!("the {interface} that is there now is no tunnel"));
            return Ok(());
        }
    }
    let header = journal.as_ref().map(|journal| journal.header().clone());
    // wg-quick does not know what a tunnel was made from.
    let header = header.filter(|_| personality == Personality::Taupe);
    let file = own_file(request, header.as_ref(), report);
    if let (Some(_), Some(problem)) = (&journal, request.problem) {
        report.note(&format!("{problem}; going by what was there at `up`"));
    }
    let descent = match &journal {
        Some(journal) => Descent::of_journal(machine, journal, file, found),
        None if found.is_none() => {
            return Err(DownError::NotUp {
                interface: name(),
                personality,
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
            Descent::of_wg_quick(changes, file, interface)
        }
    };
    let mut leftovers = Vec::new();
    descent.stand_in(machine, report);
    for hook in &descent.pre_down {
        match run(machine, hook, interface, report) {
            Ok(()) => {}
            // Its commands may need the device that is gone.
            Err(leftover) if !descent.alive => leftovers.push(leftover),
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
        let saved = save_first(machine, request, file, header, descent.alive, report);
        saved.map_err(|error| DownError::NotSaved {
            error,
            interface: name(),
        })?;
    }
    let _ = machine.stand_in(None);
    leftovers.extend(undo(machine, journal, &descent.changes, interface, report));
    descent.stand_in(machine, report);
    for hook in &descent.post_down {
        leftovers.extend(run(machine, hook, interface, report).err());
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

/// The file, unless the tunnel was made from another one.
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

/// Saves the file if it says so, or tells why that cannot be.
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
             the device has learned is not saved (`taupe save` would have been the other way)",
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
    report.step(&save::command(interface));
    machine.save(file, config, request.personality)
}

/// What taking a tunnel down consists of.
struct Descent {
    pre_down: Vec<Hook>,
    /// In the order in which they were done; the number of the journal.
    changes: Vec<(usize, Change)>,
    post_down: Vec<Hook>,
    /// The device can still be asked.
    alive: bool,
    /// Its last state, if it is gone and commands may ask for it.
    gone: Option<LastState>,
}

impl Descent {
    fn of_journal(
        machine: &mut dyn Machine,
        journal: &Journal,
        file: Option<(&Path, &File)>,
        found: Option<u32>,
    ) -> Self {
        let header = journal.header();
        let hooks = file.map(|(_, file)| &file.interface.hooks);
        let pre_down = hooks.map_or(&header.pre_down, |hooks| &hooks.pre_down);
        let post_down = hooks.map_or(&header.post_down, |hooks| &hooks.post_down);
        Self::with_hooks(machine, journal, found, pre_down, post_down)
    }

    /// PreDown is for what PostUp has done, PostDown for what PreUp or anything
    /// after it has.
    fn with_hooks(
        machine: &mut dyn Machine,
        journal: &Journal,
        found: Option<u32>,
        pre_down: &[String],
        post_down: &[String],
    ) -> Self {
        let interface = &journal.header().interface;
        let changes = journal
            .changes()
            .map(|(number, change)| (number, change.clone()));
        let mut changes: Vec<_> = changes.collect();
        let alive = is_ours(journal, found) || lives_elsewhere(machine, journal, found);
        if found.is_some() && !alive {
            // Somebody else has an interface of this name now; what ended with
            // ours has ended.
            changes.retain(|(_, c)| *c != Change::Device && !c.ends_with_device());
        }
        let was_up = journal.is_complete()
            || changes.iter().any(
                |(_, change)| matches!(change, Change::Hook(hook) if hook.phase == Phase::PostUp),
            );
        let pre_down = if was_up { pre_down } else { &[] };
        let post_down = if changes.is_empty() { &[] } else { post_down };
        let has_commands = !(pre_down.is_empty() && post_down.is_empty());
        let gone = journal.device().cloned();
        Self {
            pre_down: plan::hooks(Phase::PreDown, pre_down, interface).collect(),
            changes,
            post_down: plan::hooks(Phase::PostDown, post_down, interface).collect(),
            alive,
            gone: gone.filter(|_| !alive && found.is_none() && has_commands),
        }
    }

    fn of_wg_quick(changes: Vec<Change>, file: &File, interface: &str) -> Self {
        let hooks = &file.interface.hooks;
        Self {
            pre_down: plan::hooks(Phase::PreDown, &hooks.pre_down, interface).collect(),
            changes: changes.into_iter().enumerate().collect(),
            post_down: plan::hooks(Phase::PostDown, &hooks.post_down, interface).collect(),
            alive: true,
            gone: None,
        }
    }

    /// Has `wg show` answered for a device that is gone, until the caller ends that.
    fn stand_in(&self, machine: &mut dyn Machine, report: &mut dyn Report) {
        if let Some(gone) = &self.gone
            && let Err(error) = machine.stand_in(Some(gone))
        {
            report.note(&format!(
                "PreDown and PostDown commands cannot ask `wg show` about the ended device: the \
                 socket that answers in its place cannot be made: {error}"
            ));
        }
    }
}

/// Undoes all that a journal lists, and ends it. Returns what is left.
pub(crate) fn come_down(
    machine: &mut dyn Machine,
    journal: Journal,
    found: Option<u32>,
    with_hooks: bool,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let header = journal.header().clone();
    let interface = header.interface.as_str();
    let descent = Descent::with_hooks(
        machine,
        &journal,
        found,
        &header.pre_down,
        &header.post_down,
    );
    // What fails here is told, but does not keep anything from being undone.
    let run_all = |hooks: &[Hook], machine: &mut dyn Machine, report: &mut dyn Report| {
        for hook in hooks.iter().filter(|_| with_hooks) {
            if let Err(leftover) = run(machine, hook, interface, report) {
                report.note(&leftover.to_string());
            }
        }
    };
    descent.stand_in(machine, report);
    run_all(&descent.pre_down, machine, report);
    let _ = machine.stand_in(None);
    let leftovers = undo(machine, Some(journal), &descent.changes, interface, report);
    descent.stand_in(machine, report);
    run_all(&descent.post_down, machine, report);
    let _ = machine.stand_in(None);
    leftovers
}

/// Undoes what outlives the network namespace that a journal is about, and ends
/// it. Returns what is left.
pub(crate) fn come_home(
    machine: &mut dyn Machine,
    journal: Journal,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let interface = journal.header().interface.clone();
    let outliving = journal
        .changes()
        .filter(|(_, change)| matches!(change, Change::Dns(_)));
    let changes: Vec<_> = outliving
        .map(|(number, change)| (number, change.clone()))
        .collect();
    undo(machine, Some(journal), &changes, &interface, report)
}

/// Undoes the changes, last to first, and ends the journal when all are undone.
fn undo(
    machine: &mut dyn Machine,
    mut journal: Option<Journal>,
    changes: &[(usize, Change)],
    interface: &str,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let mut leftovers = Vec::new();
    let ends_device = changes.iter().any(|(_, change)| *change == Change::Device);
    for (number, change) in changes.iter().rev() {
        if ends_device && change.ends_with_device() {
            continue;
        }
        match take_back(machine, change, interface, report) {
            // A journal that cannot be written makes nothing worse: what is
            // undone twice is undone.
            Ok(()) => drop(journal.as_mut().map(|journal| journal.undone(*number))),
            Err(leftover) => leftovers.push(leftover),
        }
    }
    if let Some(journal) = journal.filter(|_| leftovers.is_empty())
        && let Err(error) = journal.remove()
    {
        report.note(&error.to_string());
    }
    leftovers
}

/// Undoes one change.
pub(crate) fn take_back(
    machine: &mut dyn Machine,
    change: &Change,
    interface: &str,
    report: &mut dyn Report,
) -> Result<(), Leftover> {
    let command = machine.undoing(change, interface);
    if let Some(command) = &command {
        tell(report, change, command);
    }
    match machine.undo(change) {
        Ok(None) => Ok(()),
        Ok(Some(note)) => {
            report.note(&note);
            Ok(())
        }
        Err(error) => Err(Leftover {
            command: command
                .or_else(|| change.undoing(interface))
                .unwrap_or_else(|| change.command(interface).to_string()),
            error,
        }),
    }
}

fn run(
    machine: &mut dyn Machine,
    hook: &Hook,
    interface: &str,
    report: &mut dyn Report,
) -> Result<(), Leftover> {
    let change = Change::Hook(hook.clone());
    let command = change.command(interface).to_string();
    report.step(&command);
    let run = machine.apply(&change);
    run.map_err(|error| Leftover { command, error })
}

/// What takes a tunnel down starts none.
pub(crate) struct NoDevices;

impl Devices for NoDevices {
    fn start(&mut self, interface: &str) -> Result<(), String> {
        Err(format!("{interface} is being taken down"))
    }
}

fn not_up(interface: &str, personality: Personality) -> String {
    match personality {
        Personality::WgQuick => format!("`{interface}' is not a WireGuard interface"),
        Personality::Taupe => format!("{interface} is not up"),
    }
}

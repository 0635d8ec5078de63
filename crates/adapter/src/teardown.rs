//! Undoing the steps of a tunnel, and running its commands.

use std::path::Path;

use taupe_config::file::File;

use crate::barrier::{Barrier, belongs};
use crate::change::{Change, Hook, Phase};
use crate::journal::Journal;
use crate::last_state::LastState;
use crate::machine::Machine;
use crate::ownership::{is_ours, was_renamed_or_moved};
use crate::plan;
use crate::report::Report;
use crate::step_table::Undo;
use crate::steps::{Leftover, run_hook, undo_step};

/// Undoes all changes of a journal and removes it. Returns the changes that could not be undone.
pub(crate) fn roll_back(
    machine: &mut dyn Machine,
    journal: Journal,
    found: Option<u32>,
    with_hooks: bool,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let teardown = Teardown::of_own_header(machine, &journal, found);
    let interface = journal.header().interface.clone();
    between_hooks(
        machine,
        &teardown,
        &interface,
        with_hooks,
        report,
        |machine, report| {
            undo_all(
                machine,
                Some(journal),
                &teardown.changes,
                &interface,
                report,
            )
        },
    )
}

/// Runs the commands of a teardown around `undo`, which undoes its changes.
fn between_hooks(
    machine: &mut dyn Machine,
    teardown: &Teardown,
    interface: &str,
    with_hooks: bool,
    report: &mut dyn Report,
    undo: impl FnOnce(&mut dyn Machine, &mut dyn Report) -> Vec<Leftover>,
) -> Vec<Leftover> {
    // A failed command is reported, but does not prevent undoing the changes.
    let run_all = |hooks: &[Hook], machine: &mut dyn Machine, report: &mut dyn Report| {
        for hook in hooks.iter().filter(|_| with_hooks) {
            if let Err(leftover) = run_hook(machine, hook, interface, report) {
                report.note(&leftover.to_string());
            }
        }
    };
    teardown.stand_in(machine, report);
    run_all(&teardown.pre_down, machine, report);
    let _ = machine.stand_in(None);
    let leftovers = undo(machine, report);
    teardown.stand_in(machine, report);
    run_all(&teardown.post_down, machine, report);
    let _ = machine.stand_in(None);
    leftovers
}

/// Undoes the changes that outlive the journal's network namespace, and removes the journal.
/// Returns the changes that could not be undone.
pub(crate) fn clean_up(
    machine: &mut dyn Machine,
    journal: Journal,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let interface = journal.header().interface.clone();
    let outliving = journal
        .changes()
        .filter(|(_, change)| change.step().undo == Undo::Always);
    let changes: Vec<_> = outliving
        .map(|(number, change)| (number, change.clone()))
        .collect();
    undo_all(machine, Some(journal), &changes, &interface, report)
}

/// Repairs name servers after a restart. An error is only reported, since later steps may still
/// work.
pub(crate) fn recover(machine: &mut dyn Machine, report: &mut dyn Report) {
    match machine.recover() {
        Ok(note) => note.iter().for_each(|note| report.note(note)),
        Err(error) => report.note(&error.to_string()),
    }
}

/// The commands and changes to bring a tunnel down.
pub(crate) struct Teardown {
    pub(crate) pre_down: Vec<Hook>,
    /// The changes in the order of their execution, with their numbers in the journal.
    pub(crate) changes: Vec<(usize, Change)>,
    pub(crate) post_down: Vec<Hook>,
    /// True if the device is running.
    pub(crate) alive: bool,
    /// Its last state, if it is gone and commands may query it.
    gone: Option<LastState>,
}

impl Teardown {
    pub(crate) fn of_journal(
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

    /// With the commands of the journal's header.
    fn of_own_header(machine: &mut dyn Machine, journal: &Journal, found: Option<u32>) -> Self {
        let header = journal.header();
        Self::with_hooks(machine, journal, found, &header.pre_down, &header.post_down)
    }

    /// PreDown undoes PostUp; PostDown undoes PreUp and everything after it.
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
        let alive = is_ours(journal, found) || was_renamed_or_moved(machine, journal, found);
        if found.is_some() && !alive {
            // Another program has an interface of this name now. The changes that end with the
            // device are gone.
            changes.retain(|(_, c)| *c != Change::Device && !c.ends_with_device());
        }
        let was_up = journal.is_complete()
            || changes.iter().any(
                |(_, change)| matches!(change, Change::Hook(hook) if hook.phase == Phase::PostUp),
            );
        let pre_down = if was_up { pre_down } else { &[] };
        // They have been run already if only a barrier is left.
        let post_down = match changes.iter().all(|(_, change)| belongs(change)) {
            true => &[],
            false => post_down,
        };
        let has_commands = !(pre_down.is_empty() && post_down.is_empty());
        let gone = journal.device();
        Self {
            pre_down: plan::hooks(Phase::PreDown, pre_down, interface).collect(),
            changes,
            post_down: plan::hooks(Phase::PostDown, post_down, interface).collect(),
            alive,
            gone: gone.filter(|_| !alive && found.is_none() && has_commands),
        }
    }

    pub(crate) fn of_wg_quick(changes: Vec<Change>, file: &File, interface: &str) -> Self {
        let hooks = &file.interface.hooks;
        Self {
            pre_down: plan::hooks(Phase::PreDown, &hooks.pre_down, interface).collect(),
            changes: changes.into_iter().enumerate().collect(),
            post_down: plan::hooks(Phase::PostDown, &hooks.post_down, interface).collect(),
            alive: true,
            gone: None,
        }
    }

    /// Lets a socket answer `wg show` in place of a device that is gone, until the caller ends it.
    pub(crate) fn stand_in(&self, machine: &mut dyn Machine, report: &mut dyn Report) {
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

/// Undoes all changes of a journal except those of a barrier. Returns those that could not be undone.
/// The journal and the barrier stay.
pub(crate) fn roll_back_to(
    barrier: &Barrier,
    machine: &mut dyn Machine,
    journal: &mut Journal,
    found: Option<u32>,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let interface = journal.header().interface.clone();
    let mut teardown = Teardown::of_own_header(machine, journal, found);
    teardown.changes.retain(|(number, _)| !barrier.has(*number));
    let leftovers = between_hooks(
        machine,
        &teardown,
        &interface,
        true,
        report,
        |machine, report| {
            undo_each(
                machine,
                Some(&mut *journal),
                &teardown.changes,
                &interface,
                report,
            )
        },
    );
    if leftovers.is_empty() {
        // Among them are those that ended with the device.
        let numbers: Vec<usize> = journal.changes().map(|(number, _)| number).collect();
        for number in numbers.into_iter().filter(|number| !barrier.has(*number)) {
            // A journal that cannot be written does no harm, because undoing a step twice has no
            // effect.
            let _ = journal.undone(number);
        }
    }
    leftovers
}

/// Undoes the changes, last to first, and removes the journal if all are undone.
pub(crate) fn undo_all(
    machine: &mut dyn Machine,
    mut journal: Option<Journal>,
    changes: &[(usize, Change)],
    interface: &str,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let leftovers = undo_each(machine, journal.as_mut(), changes, interface, report);
    if let Some(journal) = journal.filter(|_| leftovers.is_empty())
        && let Err(error) = journal.remove()
    {
        report.note(&error.to_string());
    }
    leftovers
}

/// Undoes the changes, last to first.
fn undo_each(
    machine: &mut dyn Machine,
    mut journal: Option<&mut Journal>,
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
        match undo_step(machine, change, interface, report) {
            // A journal that cannot be written does no harm, because undoing a step twice has no
            // effect.
            Ok(()) => drop(journal.as_mut().map(|journal| journal.undone(*number))),
            Err(leftover) => leftovers.push(leftover),
        }
    }
    leftovers
}

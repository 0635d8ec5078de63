//! Changing a running tunnel to the present contents of its file.

use std::collections::HashSet;

use ipnet::IpNet;
use taupe_config::file::File;
use taupe_packet::ip::Family;
use thiserror::Error;

use crate::bypass::Bypass;
use crate::change::{self, Change};
use crate::comparison::{Deviation, Drift};
use crate::journal::{Header, Journal, JournalError, PATIENCE, State};
use crate::linux::Linux;
use crate::machine::{LookError, Machine, StepError};
use crate::ownership::{is_ours, was_renamed_or_moved};
use crate::plan::{self, PlanError};
use crate::report::{Report, announce};
use crate::request::{NoDevices, Request};
use crate::step_table::Reload;
use crate::steps::{ApplyError, Leftover, already_exists, apply_step, list, undo_step};
use crate::verify;

/// Error of reloading a tunnel. Unless leftovers are listed, the tunnel is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The tunnel is not up, or `taupe up` did not make it.
    #[error("{0} is not up")]
    NotUp(String),
    /// The tunnel's process was killed.
    #[error(
        "{0} is not up: its process was killed, and what went through it is refused still if it was \
         a full tunnel or for chosen applications"
    )]
    Killed(String),
    /// Another program made the tunnel.
    #[error("{0} was brought up by another program")]
    NotOurs(String),
    /// The tunnel's interface was moved to another network namespace.
    #[error(
        "the interface of {0} was moved to another network namespace, where its addresses and \
         routes are not known"
    )]
    Moved(String),
    /// The tunnel is up in another network namespace.
    #[error("{0} was brought up in another network namespace; run this there")]
    Elsewhere(String),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system cannot be examined.
    #[error(transparent)]
    System(#[from] StepError),
    /// The caller's part of the reload failed.
    #[error("{0}; the tunnel is as it was")]
    Refused(String),
    /// The input for the plan cannot be collected.
    #[error(transparent)]
    Look(#[from] LookError),
    /// There is no plan for the file.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step failed.
    #[error("{cause}{}", outcome(.leftovers))]
    Failed {
        /// The error.
        cause: ApplyError,
        /// The changes that could not be restored.
        leftovers: Vec<Leftover>,
    },
}

/// Changes the tunnel to the present contents of its file, without ending sessions with remaining
/// peers. Commands of the file are not run. Options and compatibility are those of `up`; those of
/// `request` are ignored.
///
/// `first` executes the caller's part, after everything was checked and before the first change. If
/// it fails, nothing is changed. If a later step fails, the caller must undo the effects of
/// `first`.
///
/// # Errors
/// See [`ReloadError`].
pub fn reload(
    request: &Request<'_>,
    first: &mut dyn FnMut() -> Result<(), String>,
    report: &mut dyn Report,
) -> Result<(), ReloadError> {
    let state = State::default();
    let mut devices = NoDevices;
    let machine = Linux::new(request.interface, &state, &mut devices);
    let mut machine = machine.map_err(StepError::from)?;
    machine.set_outer(request.outer);
    reload_on(&mut machine, &state, request, first, report)
}

/// Like [`reload`], on a given system.
///
/// # Errors
/// See [`ReloadError`].
pub fn reload_on(
    machine: &mut dyn Machine,
    state: &State,
    request: &Request<'_>,
    first: &mut dyn FnMut() -> Result<(), String>,
    report: &mut dyn Report,
) -> Result<(), ReloadError> {
    let Request {
        interface, file, ..
    } = *request;
    let lock = state.lock(interface, PATIENCE)?;
    let journal = lock.journal()?.filter(Journal::is_complete);
    let found = machine.interface()?;
    let mut journal = match (journal, found) {
        (Some(journal), _) => journal,
        (None, None) => return Err(ReloadError::NotUp(interface.to_owned())),
        (None, Some(_)) => return Err(ReloadError::NotOurs(interface.to_owned())),
    };
    if journal.header().namespace != machine.namespace() {
        return Err(ReloadError::Elsewhere(interface.to_owned()));
    }
    machine.select_device(journal.interface(), journal.socket());
    if was_renamed_or_moved(machine, &journal, found) {
        if machine.own_interface()?.is_none() {
            return Err(ReloadError::Moved(interface.to_owned()));
        }
    } else if found.is_none() {
        return Err(ReloadError::Killed(interface.to_owned()));
    } else if !is_ours(&journal, found) {
        return Err(ReloadError::NotOurs(interface.to_owned()));
    }
    note_ignored_changes(journal.header(), request, report);
    let there: Vec<(usize, Change)> = journal
        .changes()
        .map(|(number, change)| (number, change.clone()))
        .collect();
    let own: Vec<Change> = there.iter().map(|(_, change)| change.clone()).collect();
    let snapshot = machine.look(file, &own, report)?;
    let header = journal.header();
    let (compatibility, options) = (header.compatibility, header.options);
    let plan = plan::plan(interface, file, &snapshot, compatibility, options)?;
    for note in &plan.notes {
        report.plan_note(note);
    }
    let found = verify::differences(machine, journal.applied(), journal.interface())?;
    let end = journal.end()?;
    first().map_err(ReloadError::Refused)?;
    let mark = change::mark_in_effect(&own);
    let mut difference = Difference::between(there, plan.changes);
    difference.keep_overtaken(&found.drifts, file);
    let restored = difference.restore(found.drifts);
    for finding in verify::findings(interface, &restored) {
        report.note(&format!("{}; it is restored now", finding.text));
    }
    // Add routes that existed before, and bypass the tunnel because its file has changed.
    let mut known = journal.bypasses().unwrap_or(&found.bypasses).to_vec();
    let is_new = |bypass: &Bypass| !found.bypasses.contains(bypass);
    known.extend(plan.bypasses.into_iter().filter(is_new));
    let request = Request {
        compatibility,
        options,
        ..*request
    };
    let wanted_mark = difference.mark;
    let mut done = Vec::new();
    let applied = apply_difference(
        machine,
        &mut journal,
        interface,
        difference,
        report,
        &mut done,
    );
    let outcome = applied.and_then(|()| {
        let undone: Vec<usize> = done.iter().filter_map(Done::undone).collect();
        let mut draft = journal.draft(&request, &undone)?;
        draft.journal.record_bypasses(known)?;
        sync(machine, interface, wanted_mark, report)?;
        Ok(draft)
    });
    let mut draft = match outcome {
        Ok(draft) => draft,
        Err(cause) => {
            let leftovers = restore_previous(machine, &mut journal, interface, done, mark, report);
            if leftovers.is_empty() {
                // If this fails, the journal lists steps that are undone, which `down` undoes a
                // second time without an effect.
                let _ = journal.shorten(end);
            }
            return Err(ReloadError::Failed { cause, leftovers });
        }
    };
    if let Some(device) = machine.device() {
        // The reload has succeeded. If this fails, the journal has the device's previous state.
        let _ = draft.journal.record_device(&device);
    }
    Ok(draft.replace(&mut journal)?)
}

/// Reports changes of the file that a reload ignores, such as those of commands, and a change of
/// the tunnel's file.
fn note_ignored_changes(header: &Header, request: &Request<'_>, report: &mut dyn Report) {
    let interface = request.interface;
    if header.config != request.config {
        report.note(&format!(
            "{interface} was begun from {}; it is {}'s from now on",
            header.config.display(),
            request.config.display()
        ));
    }
    if !header.has_lanes_of(request.file) {
        report.note("`Lanes` of the file takes effect at the next `up`, not at a reload");
    }
    let hooks = &request.file.interface.hooks;
    if header.pre_down != hooks.pre_down || header.post_down != hooks.post_down {
        report.note(
            "a reload runs no commands: those of PreDown and PostDown have changed, and undo at \
             `down` what those of PreUp and PostUp may not have done",
        );
    }
}

/// A change that was applied or undone during a reload, with its number in the journal.
///
/// The journal lists an undone change until a new one replaces it. If a later step fails, the
/// change is made again under its old number. A new record could fail, for example because the disk
/// is full, and `down` would then leave the change in place. If the process is killed before the
/// end, `down` undoes such a change a second time, which has no effect.
enum Done {
    Applied(usize, Change),
    Undone(usize, Change),
}

impl Done {
    fn undone(&self) -> Option<usize> {
        match self {
            Self::Applied(..) => None,
            Self::Undone(number, _) => Some(*number),
        }
    }
}

fn apply_difference(
    machine: &mut dyn Machine,
    journal: &mut Journal,
    interface: &str,
    difference: Difference,
    report: &mut dyn Report,
    done: &mut Vec<Done>,
) -> Result<(), ApplyError> {
    let apply_each = |changes: Vec<Change>,
                      machine: &mut dyn Machine,
                      journal: &mut Journal,
                      report: &mut dyn Report,
                      done: &mut Vec<Done>| {
        changes.into_iter().try_for_each(|change| {
            let number = journal.next();
            let taken = apply_step(machine, journal, interface, &change, report);
            let begun = match &taken {
                Ok(()) => true,
                Err(ApplyError::Step { error, .. }) => !already_exists(error),
                Err(_) => false,
            };
            done.extend(begun.then_some(Done::Applied(number, change)));
            taken
        })
    };
    // The journal has these changes already.
    for change in &difference.deviating {
        let command = machine.command(change, interface);
        announce(report, change, &command);
        let restored = machine.restore(change);
        restored.map_err(|error| ApplyError::Step { command, error })?;
    }
    // New addresses come first, because an interface without an IPv4 address loses its IPv4 routes.
    apply_each(difference.new_addresses, machine, journal, report, done)?;
    // New routes and rules come before the old ones are removed, so that nothing leaves in clear in
    // between.
    apply_each(difference.new_guards, machine, journal, report, done)?;
    for (number, change) in difference.gone.into_iter().rev() {
        undo_step(machine, &change, interface, report)
            .map_err(|Leftover { command, error }| ApplyError::Step { command, error })?;
        done.push(Done::Undone(number, change));
    }
    apply_each(difference.new, machine, journal, report, done)
}

/// Sets keys and peers. This comes last, even after the new journal was written, so that they never
/// have to be restored.
fn sync(
    machine: &mut dyn Machine,
    interface: &str,
    mark: Option<u32>,
    report: &mut dyn Report,
) -> Result<(), ApplyError> {
    let command = format!("wg syncconf {interface} /dev/fd/63");
    report.step(&command);
    let synced = machine.sync(mark);
    synced.map_err(|error| ApplyError::Step { command, error })
}

/// Restores the previous changes, with the mark that their rules use. Returns those that could not
/// be restored.
fn restore_previous(
    machine: &mut dyn Machine,
    journal: &mut Journal,
    interface: &str,
    done: Vec<Done>,
    mark: Option<u32>,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let mut leftovers = Vec::new();
    for done in done.into_iter().rev() {
        let back = match done {
            Done::Applied(number, change) => {
                let before = match (&change, mark) {
                    (Change::Mark(_), Some(mark)) => Some(Change::Mark(mark)),
                    _ => None,
                };
                let back = match before {
                    Some(before) => apply_again(machine, &before, interface, report),
                    None => undo_step(machine, &change, interface, report),
                };
                back.map(|()| drop(journal.undone(number)))
            }
            Done::Undone(_, change) => apply_again(machine, &change, interface, report),
        };
        leftovers.extend(back.err());
    }
    leftovers
}

fn apply_again(
    machine: &mut dyn Machine,
    change: &Change,
    interface: &str,
    report: &mut dyn Report,
) -> Result<(), Leftover> {
    let command = machine.command(change, interface);
    announce(report, change, &command);
    let taken = machine.apply(change);
    taken.map_err(|error| Leftover { command, error })
}

/// The differences between the present and the wanted changes.
pub(crate) struct Difference {
    /// Changes that stay and that another program has altered.
    deviating: Vec<Change>,
    new_addresses: Vec<Change>,
    /// Changes that route packets into the tunnel, or reject them.
    new_guards: Vec<Change>,
    pub(crate) gone: Vec<(usize, Change)>,
    new: Vec<Change>,
    mark: Option<u32>,
}

impl Difference {
    pub(crate) fn between(there: Vec<(usize, Change)>, wanted: Vec<Change>) -> Self {
        let comparable = |change: &Change| change.step().reload != Reload::Ignored;
        let there: Vec<_> = there.into_iter().filter(|(_, c)| comparable(c)).collect();
        let wanted: Vec<_> = wanted.into_iter().filter(comparable).collect();
        let mark = wanted.iter().find_map(|change| match change {
            Change::Mark(mark) => Some(*mark),
            _ => None,
        });
        let v4 = |change: &Change| match change {
            Change::Address(network @ IpNet::V4(_)) => Some(*network),
            _ => None,
        };
        let wanted_v4: Vec<IpNet> = wanted.iter().filter_map(v4).collect();
        let there_v4 = || there.iter().filter_map(|(_, change)| v4(change));
        let kept_v4: Vec<IpNet> = there_v4().filter(|net| wanted_v4.contains(net)).collect();
        // The first address of a network is the source address of packets. When it is removed, the
        // kernel also removes all other addresses of its network, and with the last address the
        // interface's routes.
        let goes = |net: &IpNet| !wanted_v4.contains(net);
        let takes_along = |gone: IpNet| wanted_v4.iter().any(|net| net.trunc() == gone.trunc());
        let again = !wanted_v4.starts_with(&kept_v4)
            || there_v4().filter(goes).any(takes_along)
            || (wanted_v4.is_empty() && there_v4().next().is_some());
        let stays = |change: &Change| {
            let of_v4 = matches!(
                change,
                Change::Address(IpNet::V4(_))
                    | Change::Route {
                        destination: IpNet::V4(_),
                        ..
                    }
            );
            !(again && of_v4)
        };
        // The order of a family's rules matters: if one of them is new, those that would have
        // another position are replaced.
        let rules = |changes: Vec<&Change>, family| {
            let rules = changes.into_iter().filter(
                move |change| matches!(change, Change::Rule(rule) if rule.family == family),
            );
            rules.map(essence).collect::<Vec<_>>()
        };
        let renewed = Family::ALL.map(|family| {
            let there = rules(there.iter().map(|(_, change)| change).collect(), family);
            (family, there != rules(wanted.iter().collect(), family))
        });
        let essence = |change: &Change| match change {
            Change::Rule(rule) if renewed.contains(&(rule.family, true)) => format!("{change:?}"),
            _ => essence(change),
        };
        let old: HashSet<String> = there
            .iter()
            .filter(|(_, change)| stays(change))
            .map(|(_, change)| essence(change))
            .collect();
        let kept: HashSet<String> = wanted
            .iter()
            .map(essence)
            .filter(|e| old.contains(e))
            .collect();
        // While an interface has no IPv4 address, the kernel accepts no IPv4 routes for it.
        let guards = |change: &Change| change.step().reload == Reload::Guard && stays(change);
        let gone = there
            .into_iter()
            .filter(|(_, c)| !kept.contains(&essence(c)));
        let new = wanted.into_iter().filter(|c| !kept.contains(&essence(c)));
        let (new_addresses, new): (_, Vec<_>) =
            new.partition(|c| !again && c.step().reload == Reload::First);
        let (new_guards, new) = new.into_iter().partition(guards);
        Self {
            deviating: Vec::new(),
            new_addresses,
            new_guards,
            gone: gone.collect(),
            new,
            mark,
        }
    }
}

impl Difference {
    /// Keeps the tunnel's routes to networks of the file to which another program has added a
    /// preferred route. The plan leaves such a network to the other route. Without the tunnel's own
    /// route there would be no finding, and packets would leave in clear when the other route is
    /// removed.
    fn keep_overtaken(&mut self, drifts: &[Drift], file: &File) {
        let is_in_file = |change: &Change| {
            let Change::Route { destination, .. } = change else {
                return false;
            };
            let mut routed = file.peers.iter().flat_map(|peer| peer.routed());
            routed.any(|network| network == *destination)
        };
        let goes = |number: usize| {
            let mut drifts = drifts.iter();
            drifts.any(|drift| drift.number == number && is_overtaken(drift))
        };
        self.gone
            .retain(|(number, change)| !(goes(*number) && is_in_file(change)));
    }

    /// Selects deviating changes to be made again, unless they are removed anyway. Returns the
    /// drifts that this repairs.
    fn restore(&mut self, mut drifts: Vec<Drift>) -> Vec<Drift> {
        drifts.retain(|drift| {
            let is_wanted = self.gone.iter().all(|(number, _)| *number != drift.number);
            // The tunnel's own route exists, and Taupe does not remove the other one.
            is_wanted && !is_overtaken(drift)
        });
        // An interface that is down, or whose MTU is too small for IPv6, accepts neither addresses
        // nor routes.
        drifts.sort_by_key(|drift| !matches!(drift.change, Change::Up { .. }));
        // The mark of the file is set together with its keys and peers.
        let again = drifts.iter().map(|drift| &drift.change);
        self.deviating = again
            .filter(|change| **change != Change::Configure)
            .cloned()
            .collect();
        drifts
    }
}

fn is_overtaken(drift: &Drift) -> bool {
    matches!(drift.deviation, Deviation::Overtaken(_))
}

/// Returns a change without the properties that do not affect its identity.
pub(crate) fn essence(change: &Change) -> String {
    let mut change = change.clone();
    match &mut change {
        Change::Rule(rule) => rule.priority = 0,
        Change::ValidMark { original } => *original = None,
        _ => {}
    }
    format!("{change:?}")
}

fn outcome(leftovers: &[Leftover]) -> String {
    if leftovers.is_empty() {
        return "; the tunnel is as it was before".to_owned();
    }
    let list = list(leftovers);
    format!("; of what was there before, this could not be put back:\n  {list}")
}

#[cfg(test)]
mod tests {
    use super::Difference;
    use crate::bypass::Bypass;
    use crate::change::Change;
    use crate::comparison::{Deviation, Drift};
    use crate::fixtures::file;
    use taupe_os_linux::netlink::{Route, Rule};
    use taupe_packet::ip::Family;

    fn rules(first: u32, mark: u32) -> Vec<Change> {
        let (family, main) = (Family::V4, Route::MAIN_TABLE);
        vec![
            Change::Rule(Rule::not_marked(family, first, mark, mark)),
            Change::Rule(Rule::suppressing(family, first - 1, 0, main)),
        ]
    }

    #[test]
    fn routes_are_made_again_when_their_addresses_go() {
        let changes = |address: &str| {
            let destination = "10.0.0.0/8".parse().expect("a network");
            let table = Route::MAIN_TABLE;
            vec![
                Change::Address(address.parse().expect("an address")),
                Change::Route { destination, table },
            ]
        };
        let between = |there: &str, wanted: &str| {
            let there = changes(there).into_iter().enumerate().collect();
            Difference::between(there, changes(wanted))
        };
        let again = between("10.9.0.2/24", "10.9.0.3/24");
        assert_eq!(again.gone.len(), 2);
        assert_eq!(again.new, changes("10.9.0.3/24"));
        let beside = between("10.9.0.2/24", "10.9.1.3/24");
        assert_eq!(beside.new_addresses, changes("10.9.1.3/24")[..1]);
        assert_eq!(beside.gone.len(), 1);
    }

    #[test]
    fn a_route_that_another_one_comes_before_stays_and_is_not_made_again() {
        let route = |destination: &str| Change::Route {
            destination: destination.parse().expect("a network"),
            table: Route::MAIN_TABLE,
        };
        let drift = |number, change, deviation| Drift {
            number,
            change,
            deviation,
        };
        let overtaken = |destination: &str| {
            Deviation::Overtaken(Bypass {
                destination: destination.parse().expect("a network"),
                gateway: None,
                interface: "eth0".to_owned(),
            })
        };
        let there = vec![
            route("fd00:1::/64"),
            route("fd00:2::/64"),
            route("fd00:3::/64"),
        ];
        let drifts = vec![
            drift(0, there[0].clone(), overtaken("fd00:1::/64")),
            drift(1, there[1].clone(), overtaken("fd00:2::/64")),
            drift(2, there[2].clone(), Deviation::Removed),
        ];
        let there = there.into_iter().enumerate().collect();
        // The first network has a foreign route; the second is not in the file any more.
        let mut difference = Difference::between(there, vec![route("fd00:3::/64")]);
        let file = file(
            "Address = fd09::2/64",
            "AllowedIPs = fd00:1::/64, fd00:3::/64",
        );
        difference.keep_overtaken(&drifts, &file);
        let restored = difference.restore(drifts);
        assert_eq!(difference.gone, [(1, route("fd00:2::/64"))]);
        assert_eq!(difference.deviating, [route("fd00:3::/64")]);
        let restored: Vec<usize> = restored.iter().map(|drift| drift.number).collect();
        assert_eq!(restored, [2]);
    }

    #[test]
    fn rules_are_replaced_together_or_not_at_all() {
        let between = |there: Vec<Change>, wanted| {
            let there = there.into_iter().enumerate().collect();
            let difference = Difference::between(there, wanted);
            (difference.gone.len(), difference.new_guards)
        };
        // Other programs' rules were added before them meanwhile.
        assert_eq!(between(rules(99, 9), rules(50, 9)), (0, vec![]));
        assert_eq!(between(rules(99, 9), rules(50, 10)), (2, rules(50, 10)));
        let [not_marked, _] = <[Change; 2]>::try_from(rules(99, 10)).expect("two");
        let replaced = between(rules(99, 9), rules(99, 10));
        assert_eq!(replaced, (1, vec![not_marked]));
    }
}

//! The barrier of a killed tunnel: the rules and the unreachable routes that block traffic while
//! nobody carries it.
//!
//! The next `up` keeps them until its own are made. Otherwise traffic of a full tunnel would leave
//! outside it each time that a service manager starts a killed tunnel again.

use taupe_config::file::{Compatibility, Endpoint, File};

use crate::change::Change;
use crate::journal::{Header, Journal, JournalError};
use crate::last_state::LastState;
use crate::machine::{Machine, StepError};
use crate::reload::{Difference, essence};
use crate::report::Report;
use crate::request::Request;
use crate::step_table::{Reload, Stage, Undo, block};
use crate::steps::already_exists;

/// A barrier, and what a tunnel must know to be brought up behind it.
pub(crate) struct Barrier {
    /// Its steps, with their numbers in the journal.
    steps: Vec<(usize, Change)>,
    /// All steps of the killed tunnel, whose mark and table stay in use.
    pub(crate) own: Vec<Change>,
    /// The device's last state. Names cannot be looked up behind the barrier.
    pub(crate) device: Option<LastState>,
}

impl Barrier {
    /// Returns the barrier of a killed tunnel. Returns `None` if it blocks nothing, or if the tunnel
    /// cannot be brought up behind it, because PreUp commands or names of endpoints need the network.
    pub(crate) fn of(journal: &Journal, request: &Request<'_>) -> Option<Self> {
        let header = journal.header();
        let steps: Vec<_> = numbered(journal)
            .filter(|(_, change)| belongs(change))
            .collect();
        let device = journal.device();
        let is_possible = request.compatibility == Compatibility::Taupe
            && header.compatibility == Compatibility::Taupe
            && block(steps.iter().map(|(_, change)| change))
            // The routes of both ways would collide.
            && header.options.chosen.is_some() == request.options.chosen.is_some()
            && request.file.interface.hooks.pre_up.is_empty()
            && knows_addresses(device.as_ref(), request.file);
        is_possible.then(|| Self {
            steps,
            own: journal
                .changes()
                .map(|(_, change)| change.clone())
                .collect(),
            device,
        })
    }

    /// Returns true for the number of a step of the barrier.
    pub(crate) fn has(&self, number: usize) -> bool {
        self.steps.iter().any(|(step, _)| *step == number)
    }

    /// Replaces the journal of the killed tunnel by one of the next tunnel, which has the barrier.
    pub(crate) fn begin(
        &mut self,
        journal: &mut Journal,
        header: Header,
    ) -> Result<(), JournalError> {
        journal.begin_again(header, |number| self.has(number))?;
        self.steps = numbered(journal).collect();
        Ok(())
    }

    /// Makes steps again that the next tunnel has undone, before its own are undone.
    pub(crate) fn restore(
        &mut self,
        machine: &mut dyn Machine,
        journal: &mut Journal,
        report: &mut dyn Report,
    ) {
        let recorded: Vec<usize> = journal.changes().map(|(number, _)| number).collect();
        for (number, change) in &mut self.steps {
            if !recorded.contains(number) {
                *number = journal.next();
                // Without the record, `down` would not undo it.
                if let Err(error) = journal.record(change) {
                    report.note(&error.to_string());
                    continue;
                }
            }
            if let Err(error) = machine.apply(change)
                && !already_exists(&error)
            {
                report.note(&format!("traffic is not blocked completely: {error}"));
            }
        }
    }

    /// Compares the barrier with a plan. Returns its steps that the plan lacks.
    pub(crate) fn compare(&self, plan: &[Change]) -> (Kept<'_>, Vec<(usize, Change)>) {
        let difference = Difference::between(self.steps.clone(), plan.to_vec());
        let gone = difference.gone;
        let stays = |(number, _): &&(usize, Change)| gone.iter().all(|(goes, _)| goes != number);
        let kept = self.steps.iter().filter(stays).map(|(_, change)| change);
        (Kept(kept.collect()), gone)
    }
}

/// The steps of a barrier that the next tunnel has too.
pub(crate) struct Kept<'a>(Vec<&'a Change>);

impl Kept<'_> {
    /// Makes sure that a step is in effect if it is one of the barrier. Returns false for any other
    /// step.
    ///
    /// # Errors
    /// See [`StepError`].
    pub(crate) fn ensure(
        &self,
        machine: &mut dyn Machine,
        change: &Change,
    ) -> Result<bool, StepError> {
        if !belongs(change) {
            return Ok(false);
        }
        let wanted = essence(change);
        let kept = self.0.iter().find(|kept| essence(kept) == wanted);
        let Some(kept) = kept else {
            return Ok(false);
        };
        match machine.apply(kept) {
            Err(error) if !already_exists(&error) => Err(error),
            _ => Ok(true),
        }
    }
}

fn numbered(journal: &Journal) -> impl Iterator<Item = (usize, Change)> + '_ {
    let changes = journal.changes();
    changes.map(|(number, change)| (number, change.clone()))
}

/// Returns true for a step that outlives the device and directs or rejects packets.
pub(crate) fn belongs(change: &Change) -> bool {
    let step = change.step();
    step.stage == Stage::Routing && step.undo == Undo::WithNamespace && step.reload == Reload::Guard
}

/// Returns true if each endpoint with a name had an address before.
fn knows_addresses(device: Option<&LastState>, file: &File) -> bool {
    file.peers.iter().all(|peer| match &peer.endpoint {
        Some(Endpoint::Name { host, .. }) => {
            device.is_some_and(|device| device.address(&peer.public_key, host).is_some())
        }
        _ => true,
    })
}

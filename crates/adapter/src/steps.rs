//! One step: applied, undone, and the errors of both.

use thiserror::Error;

use crate::change::{Change, Hook};
use crate::journal::{self, Journal};
use crate::machine::{LookError, Machine, StepError};
use crate::plan::PlanError;
use crate::report::{Report, announce};

/// Why a step, or all of them, could not be applied.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The system could not be looked at.
    #[error(transparent)]
    Look(#[from] LookError),
    /// There is no plan for the file.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step could not be written to the journal.
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
    /// The person interrupted it.
    #[error("interrupted")]
    Interrupted,
}

/// A change that could not be undone.
#[derive(Debug, Error)]
#[error("{command}: {error}")]
pub struct Leftover {
    /// The command that would undo it.
    pub command: String,
    /// Why it was not.
    pub error: StepError,
}

/// Leftovers as the end of a sentence.
pub(crate) fn list(leftovers: &[Leftover]) -> String {
    let lines: Vec<_> = leftovers.iter().map(Leftover::to_string).collect();
    lines.join("\n  ")
}

/// Applies a step. If the system has it already, it is another program's and is not undone later.
pub(crate) fn apply_step(
    machine: &mut dyn Machine,
    journal: &mut Journal,
    interface: &str,
    change: &Change,
    report: &mut dyn Report,
) -> Result<(), ApplyError> {
    if report.is_interrupted() {
        return Err(ApplyError::Interrupted);
    }
    let number = journal.next();
    journal.record(change)?;
    let command = machine.command(change, interface);
    announce(report, change, &command);
    machine.apply(change).map_err(|error| {
        if already_exists(&error) {
            // A journal that cannot be written any more still has it undone.
            let _ = journal.undone(number);
        }
        match error {
            // The signal that the person has sent has ended it, not the file.
            StepError::Hook { .. } if report.is_interrupted() => ApplyError::Interrupted,
            error => ApplyError::Step { command, error },
        }
    })
}

/// Returns whether a step failed because the system has it already. Another program has made it
/// then, and relies on it.
pub(crate) fn already_exists(error: &StepError) -> bool {
    let exists = rustix::io::Errno::EXIST.raw_os_error();
    matches!(error, StepError::System(error) if error.errno() == Some(exists))
}

/// Undoes one change.
pub(crate) fn undo_step(
    machine: &mut dyn Machine,
    change: &Change,
    interface: &str,
    report: &mut dyn Report,
) -> Result<(), Leftover> {
    let command = machine.undoing(change, interface);
    if let Some(command) = &command {
        announce(report, change, command);
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

pub(crate) fn run_hook(
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

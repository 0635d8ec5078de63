//! Applying and undoing one step.

use thiserror::Error;

use crate::change::{Change, Hook};
use crate::journal::{Journal, JournalError};
use crate::machine::{LookError, Machine, StepError};
use crate::plan::PlanError;
use crate::report::{Report, announce};

/// Error of applying steps.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The system could not be examined.
    #[error(transparent)]
    Look(#[from] LookError),
    /// There is no plan for the file.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step could not be written to the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A step failed.
    #[error("`{command}`: {error}")]
    Step {
        /// The equivalent command.
        command: String,
        /// The error.
        error: StepError,
    },
    /// The effect of a step has disappeared again.
    #[error(
        "`{command}` did not last: a later step, or another program on this system, has removed \
         what it made"
    )]
    Lost {
        /// The command equivalent to the step.
        command: String,
    },
    /// The user interrupted the operation.
    #[error("interrupted")]
    Interrupted,
}

/// A change that could not be undone.
#[derive(Debug, Error)]
#[error("{command}: {error}")]
pub struct Leftover {
    /// The command that would undo it.
    pub command: String,
    /// The error.
    pub error: StepError,
}

/// Formats leftovers as the end of a sentence.
pub(crate) fn list(leftovers: &[Leftover]) -> String {
    let lines: Vec<_> = leftovers.iter().map(Leftover::to_string).collect();
    lines.join("\n  ")
}

/// Applies a step. An object that exists already belongs to another program, so the step will not
/// be undone.
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
    let before = journal.end()?;
    journal.record(change)?;
    let command = machine.command(change, interface);
    announce(report, change, &command);
    machine.apply(change).map_err(|error| {
        if already_exists(&error) {
            // If this fails, at least the copy in memory does not list the step.
            let _ = journal.shorten(before);
        }
        match error {
            // The user's signal ended the command, which is not an error of the file.
            StepError::Hook { .. } if report.is_interrupted() => ApplyError::Interrupted,
            error => ApplyError::Step { command, error },
        }
    })
}

/// Returns true if a step failed because the object exists already. Another program has then
/// created it and relies on it.
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

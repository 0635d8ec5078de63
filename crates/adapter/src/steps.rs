//! One step: taken, undone, and what goes wrong with it.

use thiserror::Error;

use crate::change::{Change, Hook};
use crate::journal::{self, Journal};
use crate::machine::{LookError, Machine, StepError};
use crate::plan::PlanError;
use crate::report::{Report, tell};

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

/// Something that is left, because it could not be undone.
#[derive(Debug, Error)]
#[error("{command}: {error}")]
pub struct Leftover {
    /// The command that would have to be done.
    pub command: String,
    /// Why it was not.
    pub error: StepError,
}

/// Leftovers as the end of a sentence.
pub(crate) fn list(leftovers: &[Leftover]) -> String {
    let lines: Vec<_> = leftovers.iter().map(Leftover::to_string).collect();
    lines.join("\n  ")
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

pub(crate) fn run(
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

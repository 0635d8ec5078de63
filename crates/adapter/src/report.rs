//! Progress and notes for the user.

use taupe_config::plan_note::PlanNote;

use crate::change::Change;
use crate::setting::Setting;

/// Receives progress and notes for the user.
pub trait Report {
    /// Reports a step that is about to be executed, as the equivalent command. `wg-quick` prints it
    /// after `[#]`.
    fn step(&mut self, command: &str);

    /// Like [`Report::step`], for routes, of which there may be many.
    fn route(&mut self, command: &str) {
        self.step(command);
    }

    /// Reports a note, one sentence.
    fn note(&mut self, sentence: &str);

    /// Reports a note about the plan of a tunnel.
    fn plan_note(&mut self, note: &PlanNote) {
        self.note(&note.sentence);
    }

    /// Returns true if the user has interrupted the operation. Called between two steps; the
    /// executed steps are then undone.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Reports a step that makes or undoes `change`.
pub(crate) fn announce(report: &mut dyn Report, change: &Change, command: &str) {
    match change.step().setting {
        Some(Setting::Routes) => report.route(command),
        _ => report.step(command),
    }
}

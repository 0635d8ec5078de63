//! Progress and notes for the person who brings a tunnel up or down.

use crate::change::Change;

/// Tells the person what happens.
pub trait Report {
    /// A step that is about to be taken, as the command that it is like:
    /// `wg-quick` prints it behind `[#]`.
    fn step(&mut self, command: &str);

    /// As [`Report::step`], of a route, of which there may be many.
    fn route(&mut self, command: &str) {
        self.step(command);
    }

    /// Something to know, in a sentence.
    fn note(&mut self, sentence: &str);

    /// Whether the person wants it to stop. Asked between two steps; what has
    /// been done is undone then.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Tells of a step that makes or undoes `change`.
pub(crate) fn announce(report: &mut dyn Report, change: &Change, command: &str) {
    match change {
        Change::Route { .. } | Change::Unreachable { .. } | Change::Special { .. } => {
            report.route(command);
        }
        _ => report.step(command),
    }
}

//! Progress and notes for the user.

use crate::change::Change;
use crate::setting::Setting;

/// A note about the plan of a tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanNote {
    /// One sentence.
    pub sentence: String,
    /// The change after which the note no longer applies, if there is one.
    pub remedy: Option<Remedy>,
}

/// A change of the request or of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// [`Options::override_routes`](crate::Options::override_routes) tunnels the network.
    Override,
    /// `DisallowedIPs` declare that the destinations bypass the tunnel.
    Exclude,
    /// [`Self::Override`], or else [`Self::Exclude`].
    OverrideOrExclude,
}

impl From<String> for PlanNote {
    fn from(sentence: String) -> Self {
        let remedy = None;
        Self { sentence, remedy }
    }
}

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

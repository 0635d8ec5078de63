//! The lines of the demo: what was expected, and what was found.

use crate::console;
use crate::error::Error;
use std::fmt::{Debug, Display};

/// What was found so far, printed as it is found.
#[derive(Debug, Default)]
pub struct Evidence {
    failed: Vec<String>,
}

impl Evidence {
    /// Text that claims nothing.
    pub(super) fn say(&self, text: impl Display) {
        console::print(format_args!("{text}\n"));
    }

    /// A figure, which is neither right nor wrong.
    pub(super) fn figure(&self, what: &str, figure: impl Display) {
        console::print(format_args!("{:6}  {what:16}  {figure}\n", ""));
    }

    /// Something that was found, and whether it is as it should be.
    pub(super) fn found(&mut self, what: &str, holds: bool, found: impl Display) {
        let mark = if holds { "ok" } else { "FAILED" };
        console::print(format_args!("{mark:6}  {what:16}  {found}\n"));
        if !holds {
            self.failed.push(format!("{what}: {found}"));
        }
    }

    /// Something that should be exactly this.
    pub(super) fn equal<T: PartialEq + Debug>(
        &mut self,
        what: &str,
        found: &T,
        expected: &T,
        text: impl Display,
    ) {
        if found == expected {
            self.found(what, true, text);
        } else {
            self.found(
                what,
                false,
                format_args!("{found:?}, expected {expected:?}"),
            );
        }
    }

    /// That it could not go on.
    pub fn stopped(&mut self, error: &Error) {
        self.found("stopped", false, error.one_line());
    }

    /// What has not held.
    #[must_use]
    pub fn failed(&self) -> &[String] {
        &self.failed
    }
}

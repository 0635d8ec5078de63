//! The lines of the demo: expectation and observation.

use crate::console;
use crate::error::Error;
use std::fmt::{Debug, Display};

/// The observations so far, printed as they are made.
#[derive(Debug, Default)]
pub struct Evidence {
    failed: Vec<String>,
}

impl Evidence {
    /// Prints text without an expectation.
    pub(super) fn print(&self, text: impl Display) {
        console::print(format_args!("{text}\n"));
    }

    /// Prints a figure without an expectation.
    pub(super) fn figure(&self, what: &str, figure: impl Display) {
        console::print(format_args!("{:6}  {what:16}  {figure}\n", ""));
    }

    /// Prints an observation, and records it as failed unless `holds` is true.
    pub(super) fn check(&mut self, what: &str, holds: bool, found: impl Display) {
        let mark = if holds { "ok" } else { "FAILED" };
        console::print(format_args!("{mark:6}  {what:16}  {found}\n"));
        if !holds {
            self.failed.push(format!("{what}: {found}"));
        }
    }

    /// Prints an observation that must equal a value.
    pub(super) fn check_equal<T: PartialEq + Debug>(
        &mut self,
        what: &str,
        found: &T,
        expected: &T,
        text: impl Display,
    ) {
        if found == expected {
            self.check(what, true, text);
        } else {
            self.check(
                what,
                false,
                format_args!("{found:?}, expected {expected:?}"),
            );
        }
    }

    /// Records an error that stopped the demo.
    pub fn abort(&mut self, error: &Error) {
        self.check("stopped", false, error.one_line());
    }

    /// Returns the failed expectations.
    #[must_use]
    pub fn failed(&self) -> &[String] {
        &self.failed
    }
}

//! A terminal's colours (ECMA-48 §8.3.117).

use core::fmt::{self, Write};

pub(super) const RESET: &str = "\x1b[0m";
pub(super) const BOLD: &str = "\x1b[1m";
pub(super) const RED: &str = "\x1b[31m";
pub(super) const GREEN: &str = "\x1b[32m";
pub(super) const YELLOW: &str = "\x1b[33m";
pub(super) const CYAN: &str = "\x1b[36m";

/// Use of colours in the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colours {
    /// Colours are written.
    On,
    /// No colours are written.
    Off,
}

impl Colours {
    pub(super) fn write(self, out: &mut impl Write, codes: &[&str]) -> fmt::Result {
        match self {
            Self::On => codes.iter().try_for_each(|code| out.write_str(code)),
            Self::Off => Ok(()),
        }
    }
}

//! Colours in output.

use std::io::{self, IsTerminal as _};

/// True if output gets colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Paint(bool);

/// A colour (ECMA-48 section 8.3.117).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
}

impl Paint {
    /// Colours if standard output is a terminal and `NO_COLOR` is not set (<https://no-color.org>).
    pub(crate) fn of_stdout() -> Self {
        let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(io::stdout().is_terminal() && !is_unwanted)
    }

    /// Returns true if output gets colours.
    #[cfg(feature = "top")]
    pub(crate) const fn is_coloured(self) -> bool {
        self.0
    }

    pub(crate) const fn none() -> Self {
        Self(false)
    }

    pub(crate) fn paint(self, text: &str, colour: Colour) -> String {
        match self {
            Self(true) => format!("\x1b[{}m{text}\x1b[0m", colour as u8),
            Self(false) => text.to_owned(),
        }
    }
}

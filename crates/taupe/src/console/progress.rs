//! Messages while a tunnel is brought up or taken down.

use super::{Asked, Interrupt, say};
use std::io::{self, IsTerminal as _};
use taupe_adapter::Report;

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

/// Longest sequence of route commands that is printed in full without `--verbose`.
const FEW: usize = 6;

/// Prints messages to standard error, and listens to signals.
pub(crate) struct Console {
    interrupt: Interrupt,
    /// True if every route is printed, not only their number.
    verbose: bool,
    /// The first commands of the current sequence of routes, and the length of the sequence.
    routes: (Vec<String>, usize),
}

impl Console {
    /// Creates a console that catches no signals.
    pub(crate) fn new(verbose: bool) -> Self {
        Self {
            interrupt: Interrupt::default(),
            verbose,
            routes: (Vec::new(), 0),
        }
    }

    /// Catches SIGTERM, SIGINT and SIGHUP for the rest of the process's life and passes them on.
    /// SIGTERM and SIGINT interrupt the current operation.
    ///
    /// # Errors
    ///
    /// Fails if no file descriptor or thread is left.
    pub(crate) fn catching(
        verbose: bool,
        asked: impl FnMut(Asked) + Send + 'static,
    ) -> io::Result<Self> {
        let mut console = Self::new(verbose);
        console.interrupt = Interrupt::catching(asked)?;
        Ok(console)
    }

    /// Clears the interrupt after the interrupted operation has ended. The next signal interrupts
    /// again.
    pub(crate) fn heard(&self) {
        self.interrupt.forget();
    }

    /// Ends the current sequence of routes and prints it.
    pub(crate) fn end_routes(&mut self) {
        let (first, count) = std::mem::take(&mut self.routes);
        for line in in_short(&first, count) {
            say(&line);
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.end_routes();
    }
}

/// Checks whether a command adds a route instead of deleting one.
fn is_adding(command: &str) -> bool {
    command.split(' ').any(|word| word == "add")
}

/// Returns the lines for a sequence of `count` routes, of which the first [`FEW`] are known: either
/// all of them, or one and the number of the others.
fn in_short(first: &[String], count: usize) -> Vec<String> {
    match (first, count.saturating_sub(1)) {
        ([one, ..], more) if count > FEW => {
            vec![format!(
                "[#] {one} (and {more} more routes; --verbose or LOG_LEVEL=verbose shows each)"
            )]
        }
        _ => first.iter().map(|one| format!("[#] {one}")).collect(),
    }
}

impl Report for Console {
    fn step(&mut self, command: &str) {
        self.end_routes();
        say(&format_args!("[#] {command}"));
    }

    fn route(&mut self, command: &str) {
        if self.verbose {
            return self.step(command);
        }
        // Deleted routes do not continue a sequence of added ones.
        let first = self.routes.0.first();
        if first.is_some_and(|first| is_adding(first) != is_adding(command)) {
            self.end_routes();
        }
        let (first, count) = &mut self.routes;
        *count += 1;
        if *count <= FEW {
            first.push(command.to_owned());
        }
    }

    fn note(&mut self, sentence: &str) {
        self.end_routes();
        say(&format_args!("[!] {sentence}"));
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.has_come()
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW, in_short};

    #[test]
    fn few_routes_are_told_of_one_by_one_and_many_in_one_line() {
        let routes: Vec<_> = (0..FEW).map(|one| format!("route {one}")).collect();
        assert!(in_short(&[], 0).is_empty());
        assert_eq!(in_short(&routes[..1], 1), ["[#] route 0"]);
        assert_eq!(in_short(&routes, FEW).len(), FEW);
        let lines = in_short(&routes, 95);
        assert_eq!(lines.len(), 1);
        let start = "[#] route 0 (and 94 more routes; --verbose or ";
        assert!(lines[0].starts_with(start), "{lines:?}");
    }
}

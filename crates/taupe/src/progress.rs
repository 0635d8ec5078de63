//! Messages while a tunnel is brought up or taken down.

use crate::console::say;
use crate::interrupt::Interrupt;
use crate::plan_note::with_remedy;
use std::io;
use taupe_adapter::{PlanNote, Report};

/// Request of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

/// Longest sequence of route commands that is printed in full without `--verbose`.
const SHOWN_ROUTES: usize = 6;

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
        pass_on: impl Fn(Signal) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let mut console = Self::new(verbose);
        let reload = pass_on.clone();
        console.interrupt =
            Interrupt::catching(move || pass_on(Signal::End), move || reload(Signal::Reload))?;
        Ok(console)
    }

    /// Clears the interrupt after the interrupted operation has ended. The next signal interrupts
    /// again.
    pub(crate) fn clear_interrupt(&self) {
        self.interrupt.set(false);
    }

    /// Ends the current sequence of routes and prints it.
    pub(crate) fn print_routes(&mut self) {
        let (first, count) = std::mem::take(&mut self.routes);
        for line in in_short(&first, count) {
            say(&line);
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.print_routes();
    }
}

/// Checks whether a command adds a route instead of deleting one.
fn is_adding(command: &str) -> bool {
    command.split(' ').any(|word| word == "add")
}

/// Returns the lines for a sequence of `count` routes, of which the first [`SHOWN_ROUTES`] are known: either
/// all of them, or one and the number of the others.
fn in_short(first: &[String], count: usize) -> Vec<String> {
    match (first, count.saturating_sub(1)) {
        ([one, ..], more) if count > SHOWN_ROUTES => {
            vec![format!(
                "[#] {one} (and {more} more routes; --verbose or LOG_LEVEL=verbose shows each)"
            )]
        }
        _ => first.iter().map(|one| format!("[#] {one}")).collect(),
    }
}

impl Report for Console {
    fn step(&mut self, command: &str) {
        self.print_routes();
        say(&format_args!("[#] {command}"));
    }

    fn route(&mut self, command: &str) {
        if self.verbose {
            return self.step(command);
        }
        // Deleted routes do not continue a sequence of added ones.
        let first = self.routes.0.first();
        if first.is_some_and(|first| is_adding(first) != is_adding(command)) {
            self.print_routes();
        }
        let (first, count) = &mut self.routes;
        *count += 1;
        if *count <= SHOWN_ROUTES {
            first.push(command.to_owned());
        }
    }

    fn note(&mut self, sentence: &str) {
        self.print_routes();
        say(&format_args!("[!] {sentence}"));
    }

    fn plan_note(&mut self, note: &PlanNote) {
        self.note(&with_remedy(note));
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_set()
    }
}

#[cfg(test)]
mod tests {
    use super::{SHOWN_ROUTES, in_short};

    #[test]
    fn few_routes_are_printed_one_by_one_and_many_in_one_line() {
        let routes: Vec<_> = (0..SHOWN_ROUTES)
            .map(|one| format!("route {one}"))
            .collect();
        assert!(in_short(&[], 0).is_empty());
        assert_eq!(in_short(&routes[..1], 1), ["[#] route 0"]);
        assert_eq!(in_short(&routes, SHOWN_ROUTES).len(), SHOWN_ROUTES);
        let lines = in_short(&routes, 95);
        assert_eq!(lines.len(), 1);
        let start = "[#] route 0 (and 94 more routes; --verbose or ";
        assert!(lines[0].starts_with(start), "{lines:?}");
    }
}

//! Displays the current step, its duration and the remaining time.

use super::plan::Step;
use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};
use taupe_lab::console;

/// Progress output of a run: one line that changes on a terminal, otherwise a line for each step.
pub(super) struct Progress {
    began: Instant,
    step_began: Instant,
    steps: usize,
    done: usize,
    /// Expected time of all steps, and of the finished ones.
    expected: Duration,
    expected_done: Duration,
    changing: bool,
}

impl Progress {
    pub(super) fn new(expected: Duration, steps: usize) -> Self {
        Self {
            began: Instant::now(),
            step_began: Instant::now(),
            steps,
            done: 0,
            expected,
            expected_done: Duration::ZERO,
            changing: stdout().is_terminal(),
        }
    }

    pub(super) fn begin(&mut self, step: &Step) {
        self.step_began = Instant::now();
        let line = format!(
            "[{} of about {}] {:3}/{} {}",
            minutes(self.began.elapsed()),
            minutes(self.began.elapsed() + self.left()),
            self.done + 1,
            self.steps,
            step.label,
        );
        if self.changing {
            // A line as wide as the terminal would wrap, and `\r` would not return to its
            // beginning.
            let line: String = line.chars().take(78).collect();
            console::print(format_args!("\r\x1b[K{line}"));
        } else {
            console::print(line);
        }
    }

    pub(super) fn end(&mut self, expected: &Duration, failed: Option<&str>) {
        self.done += 1;
        self.expected_done += *expected;
        let took = self.step_began.elapsed().as_secs_f64();
        match (failed, self.changing) {
            (Some(reason), _) => {
                console::print(format_args!("\n    failed after {took:.1} s: {reason}\n"));
            }
            (None, false) => console::print(format_args!(" ({took:.1} s)\n")),
            (None, true) => {}
        }
    }

    pub(super) fn close(&self) {
        if self.changing {
            console::print("\r\x1b[K");
        }
        console::print(format_args!(
            "{} of {} steps in {}\n",
            self.done,
            self.steps,
            minutes(self.began.elapsed())
        ));
    }

    /// Returns the expected remaining time.
    fn left(&self) -> Duration {
        self.expected.saturating_sub(self.expected_done)
    }
}

/// `3:07`.
fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

//! Changes of applications that the page requests.

use super::machine::{Files, Machine};
use crate::arguments::AppPlace;
use crate::console::say;
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};
use taupe_config::application::Application;
use taupe_web_link::{Outcome, Place, Switch};

/// Requests within a time, at most.
const MAX_CHANGES: usize = 20;
const PERIOD: Duration = Duration::from_secs(60);

/// Time before the answer to a request beyond that.
const PAUSE: Duration = Duration::from_secs(1);

/// Characters of a sentence that are printed, at most.
const MAX_PRINTED: usize = 300;

/// Limits the changes that `taupe-web` can request, because it parses requests of browsers.
#[derive(Default)]
pub(super) struct Switches {
    /// Files of the tunnels that the page shows.
    pub(super) files: Files,
    /// Times of the latest requests.
    requests: VecDeque<Instant>,
}

impl Switches {
    /// Makes a change as `taupe app` does, and prints it. Requests beyond the limit wait and are not
    /// printed, so that they fill neither the terminal nor the processor's time.
    pub(super) fn make(&mut self, switch: &Switch, machine: &mut impl Machine) -> Outcome {
        if !self.is_permitted(Instant::now()) {
            thread::sleep(PAUSE);
            let reason =
                format!("there were {MAX_CHANGES} requests within a minute; try again later");
            return Outcome::new(false, &[reason]);
        }
        let (mut sentences, made) = self.attempt(switch, machine);
        let is_done = made.is_ok();
        sentences.extend(made.err());
        let (tunnel, application) = (printable(&switch.tunnel), printable(&switch.application));
        tracing::info!(tunnel, application, place = ?switch.place, is_done, "the page requested a change");
        for sentence in &sentences {
            say(&format_args!("the page: {}", printable(sentence)));
        }
        Outcome::new(is_done, &sentences)
    }

    /// Counts a request.
    fn is_permitted(&mut self, now: Instant) -> bool {
        let is_old = |at: &Instant| now.saturating_duration_since(*at) > PERIOD;
        while self.requests.front().is_some_and(is_old) {
            self.requests.pop_front();
        }
        let is_permitted = self.requests.len() < MAX_CHANGES;
        if is_permitted {
            self.requests.push_back(now);
        }
        is_permitted
    }

    fn attempt(
        &self,
        switch: &Switch,
        machine: &mut impl Machine,
    ) -> (Vec<String>, Result<(), String>) {
        let refused = |reason: String| (Vec::new(), Err(reason));
        let Some(file) = self.files.get(&switch.tunnel) else {
            return refused("the page shows no such tunnel in transparent mode".to_owned());
        };
        let application: Application = match switch.application.parse() {
            Ok(application) => application,
            Err(error) => return refused(format!("{}: {error}", switch.application)),
        };
        let place = match switch.place {
            Place::Allowed => AppPlace::Allowed,
            Place::Disallowed => AppPlace::Disallowed,
            Place::Nowhere => AppPlace::Nowhere,
        };
        machine.change(file, place, &application)
    }
}

/// Returns a text without characters that control the terminal or begin a line.
fn printable(text: &str) -> String {
    let shown = |c: char| match c.is_control()
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    {
        true => ' ',
        false => c,
    };
    text.chars().take(MAX_PRINTED).map(shown).collect()
}

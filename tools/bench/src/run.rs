//! Plans the measurements and carries them out.
//!
//! The whole plan exists before the first measurement, so that progress can be shown. Within a
//! section the outer loop is over rounds and the inner one over contestants (A B C, A B C, …), so
//! that drift of a shared machine affects all contestants.
//!
//! After a failed step the run continues with the next. The report is written after every step, so
//! that an interrupted run leaves all results so far.

mod machine;
mod options;
mod plan;
mod progress;

pub use options::{Options, RunKind, Section};

use crate::contestant::{self, Contestant};
use crate::measure::latency::RoundTrips;
use crate::measure::metrics::{Sample, State};
use crate::measure::servers::Servers;
use crate::pair::Link;
use crate::report;
use crate::results::{Entry, FORMAT, Failure, Report, Settings};
use crate::session::Session;
use crate::tables::{self, freebsd};
use plan::Plan;
use progress::Progress;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use taupe_lab::console;
use taupe_lab::error::{Error, Result};
use taupe_lab::guest;

/// State of a run.
struct Bench {
    options: Options,
    contestants: Vec<Rc<dyn Contestant>>,
    /// Running contestants by id and kind of link. `None` for one that did not start or has ended;
    /// it is not started again.
    running: HashMap<(String, &'static str), Option<RunningContestant>>,
    /// All round trips so far, by contestant and load.
    round_trips: HashMap<(String, &'static str), RoundTrips>,
    /// The virtual machine of the FreeBSD table, while this table is measured.
    laboratory: Option<freebsd::Laboratory>,
    report: Report,
}

/// A running contestant with its measuring servers.
struct RunningContestant {
    // Fields drop in order: the servers run on the session's machines.
    servers: Servers,
    session: Session,
}

/// Installs the contestants as far as this must happen outside the sandbox. Returns those that
/// could not be installed, with the reason.
pub fn prepare(options: &Options) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    for contestant in contestant::all().into_iter().chain(contestant::variants()) {
        if !options.takes(contestant.id()) {
            continue;
        }
        if let Err(error) = contestant.install() {
            refused.push((contestant.id().to_owned(), error.to_string()));
        }
    }
    if options.has(Section::Freebsd2022)
        && let Err(error) = guest::install()
    {
        // The table repeats the reason.
        let reason = error.one_line();
        console::print(format_args!("no guest for {}: {reason}\n", freebsd::NAME));
    }
    refused
}

/// Measures inside a sandbox, and writes the report into the folder of the options. Returns the
/// report as last written.
///
/// # Errors
///
/// Only if the report cannot be written: failed measurements are part of the report.
pub fn run(options: Options, stop: &Arc<AtomicBool>) -> Result<Report> {
    let began = Instant::now();
    let mut bench = Bench::new(options);
    let plan = Plan::new(&bench);
    let mut progress = Progress::new(plan.estimate(), plan.steps.len());
    let mut complete = true;
    for step in plan.steps {
        if stop.load(Ordering::Relaxed) {
            complete = false;
            break;
        }
        progress.begin(&step);
        let outcome = (step.work)(&mut bench);
        if let Err(error) = &outcome
            && stop.load(Ordering::Relaxed)
        {
            progress.end(&step.estimate, Some(&format!("stopped: {error}")));
            complete = false;
            break;
        }
        let reason = outcome.err().map(|error| {
            // If a program has ended, this is the cause of the step's error and the better message.
            let ended = bench.ended(&step.contestant);
            ended.unwrap_or(error).one_line()
        });
        progress.end(&step.estimate, reason.as_deref());
        if let Some(reason) = reason {
            bench.report.failures.push(Failure {
                what: step.what,
                contestant: step.contestant,
                reason,
            });
        }
        bench.report.seconds = began.elapsed().as_secs_f64();
        bench.write()?;
    }
    bench.report.complete = complete;
    bench.report.seconds = began.elapsed().as_secs_f64();
    bench.running.clear();
    bench.laboratory = None;
    bench.write()?;
    progress.close();
    Ok(bench.report)
}

impl Bench {
    fn new(options: Options) -> Self {
        let mut entries = Vec::new();
        let mut contestants: Vec<Rc<dyn Contestant>> = Vec::new();
        for contestant in contestant::all().into_iter().chain(contestant::variants()) {
            let id = contestant.id();
            if !options.takes(id) {
                continue;
            }
            let refused = options.refused.iter().find(|(refused, _)| refused == id);
            let version = match refused {
                Some((_, reason)) => Err(reason.clone()),
                None => contestant.version().map_err(|error| error.one_line()),
            };
            entries.push(Entry {
                id: id.to_owned(),
                title: contestant.title().to_owned(),
                version: version.clone().ok().flatten(),
                unavailable: version.clone().err(),
            });
            if version.is_ok() {
                contestants.push(contestant.into());
            }
        }
        let report = Report {
            format: FORMAT,
            started: machine::now(),
            seconds: 0.0,
            complete: false,
            settings: Settings {
                kind: options.name().to_owned(),
                rounds: options.rounds,
                seconds: options.seconds.into(),
                link: options.link.to_string(),
            },
            machine: machine::describe(),
            tools: machine::tools(),
            contestants: entries,
            metrics: Vec::new(),
            series: Vec::new(),
            distributions: Vec::new(),
            failures: Vec::new(),
            tables: Vec::new(),
        };
        Self {
            options,
            contestants,
            running: HashMap::new(),
            round_trips: HashMap::new(),
            laboratory: None,
            report,
        }
    }

    /// Starts a contestant on new machines, replacing its machines on this kind of link. Returns
    /// the time until the first answer, in seconds.
    fn start(&mut self, contestant: &Rc<dyn Contestant>, link: &Link) -> Result<f64> {
        let key = key(contestant, link);
        let name = format!("{}-{}", key.1, key.0);
        // The old machines go first, because the new ones get the same names.
        self.running.insert(key.clone(), None);
        let session = Session::start(&**contestant, &name, link)?;
        let startup = session.startup.as_secs_f64();
        let servers = Servers::new(&session);
        self.running
            .insert(key, Some(RunningContestant { servers, session }));
        Ok(startup)
    }

    /// Returns the contestant running on this kind of link, and starts it if necessary.
    fn running(
        &mut self,
        contestant: &Rc<dyn Contestant>,
        link: &Link,
    ) -> Result<&mut RunningContestant> {
        let key = key(contestant, link);
        if !self.running.contains_key(&key) {
            self.start(contestant, link)?;
        }
        let entry = self.running.get_mut(&key).and_then(Option::as_mut);
        entry.ok_or_else(|| Error::unmet("it did not start, or has ended"))
    }

    /// Returns the reason why a contestant's programs have ended, if they have, and stops the rest
    /// of it.
    fn ended(&mut self, contestant: &str) -> Option<Error> {
        let mut of_contestant = self
            .running
            .iter_mut()
            .filter(|((id, _), _)| id == contestant);
        of_contestant.find_map(|(_, slot)| {
            let error = slot.as_mut()?.session.check().err()?;
            *slot = None;
            Some(error)
        })
    }

    /// Stops all contestants on this kind of link.
    fn stop_all(&mut self, link: &Link) {
        self.running.retain(|(_, kind), _| *kind != link.kind());
    }

    /// Records samples of a contestant.
    fn record(&mut self, contestant: &Rc<dyn Contestant>, samples: Vec<Sample>) {
        for (metric, sample) in samples {
            self.report.record(contestant.id(), &metric, sample);
        }
    }

    /// Records round trips; the distribution covers all rounds.
    fn record_round_trips(
        &mut self,
        contestant: &Rc<dyn Contestant>,
        state: State,
        found: RoundTrips,
    ) {
        let (id, metric) = (contestant.id().to_owned(), state.key());
        let all = self.round_trips.entry((id.clone(), metric)).or_default();
        all.extend(found);
        let distributions = &mut self.report.distributions;
        distributions.retain(|known| known.metric != metric || known.contestant != id);
        distributions.push(all.distribution(metric, &id));
    }

    /// Fills the named tables and writes the report.
    fn write(&mut self) -> Result<()> {
        self.report.tables = tables::all(&self.report);
        let folder = &self.options.out;
        let json = serde_json::to_string_pretty(&self.report)
            .map_err(|error| Error::unmet(format!("the report as JSON: {error}")))?;
        replace(&folder.join("report.json"), &json)?;
        replace(&folder.join("report.html"), &report::html(&self.report))
    }
}

fn key(contestant: &Rc<dyn Contestant>, link: &Link) -> (String, &'static str) {
    (contestant.id().to_owned(), link.kind())
}

/// Replaces a file atomically.
fn replace(path: &Path, content: &str) -> Result<()> {
    let draft = path.with_extension("partial");
    let writing = || Error::io(format!("writing {}", path.display()));
    fs::write(&draft, content).map_err(writing())?;
    fs::rename(&draft, path).map_err(writing())
}

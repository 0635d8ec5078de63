//! Plans the measurements and carries them out.
//!
//! The whole plan exists before the first measurement, so that progress can be shown. Within a
//! section the outer loop is over rounds and the inner one over contestants (A B C, A B C, …), so
//! that drift of a shared machine affects all contestants.
//!
//! After a failed step the run continues with the next. The report is written after every step, so
//! that an interrupted run leaves all results so far. In parts ([`crate::parts`]), a run instead
//! writes the part and the report of all parts after every group of steps.

mod part;
mod plan;
mod progress;

use crate::contestant::{self, Contestant};
use crate::machine;
use crate::measure::latency::RoundTrips;
use crate::measure::load::Load;
use crate::measure::metrics::{LoadSubject, Sample};
use crate::measure::servers::Servers;
use crate::options::{Options, Section};
use crate::pair::Link;
use crate::report;
use crate::results::{Entry, FORMAT, Failure, Report, Settings};
use crate::session::Session;
use crate::tables::{self, freebsd};
use part::CurrentPart;
use plan::{Plan, Step};
use progress::Progress;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taupe_lab::console;
use taupe_lab::error::{Error, Result};
use taupe_lab::guest;

/// State of a run.
struct Bench {
    options: Options,
    contestants: Vec<Rc<dyn Contestant>>,
    /// Running contestants by id and kind of link. `None` for one that did not start or has ended;
    /// it is not started again.
    running: HashMap<(String, String), Option<RunningContestant>>,
    /// All round trips so far, by contestant and key of the distribution.
    round_trips: BTreeMap<(String, String), RoundTrips>,
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

/// A run that has ended.
#[derive(Debug)]
pub struct FinishedRun {
    /// The last report. In a run in parts, it covers all parts so far.
    pub report: Report,
    /// The reason why it ended.
    pub end: RunEnd,
}

/// The reason why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// Everything was measured.
    Complete,
    /// The run was asked to stop.
    Stopped,
    /// The time of the part was over.
    PartOver {
        /// Number of groups of measurements that all parts have measured.
        done: usize,
        /// Number of groups of the run.
        groups: usize,
    },
}

/// Measures inside a sandbox, and writes the report into the folder of the options.
///
/// # Errors
///
/// If the report cannot be written, or the part cannot continue the others in the folder. Failed
/// measurements are part of the report.
pub fn run(options: Options, stop: &Arc<AtomicBool>) -> Result<FinishedRun> {
    let began = Instant::now();
    let mut bench = Bench::new(options);
    let Plan {
        mut steps, groups, ..
    } = Plan::new(&bench);
    let mut part = CurrentPart::open(&bench.options, &groups, &bench.report)?;
    if let Some(part) = &part {
        steps.retain(|step| !part.has(step.group));
    }
    let estimate: Duration = steps.iter().map(|step| step.estimate).sum();
    let mut progress = Progress::new(estimate, steps.len());
    let mut end = RunEnd::Complete;
    for steps in by_group(steps) {
        let Some(group) = steps.first().map(|step| step.group) else {
            continue;
        };
        let expected = || steps.iter().map(|step| step.estimate);
        if let Some(part) = &mut part
            && !part.has_time_for(group, began.elapsed(), expected())?
        {
            end = part.over();
            break;
        }
        if !bench.measure(steps, stop, &mut progress, began)? {
            end = RunEnd::Stopped;
            break;
        }
        if let Some(part) = &mut part {
            bench.report.seconds = began.elapsed().as_secs_f64();
            part.save(group, &bench)?;
        }
    }
    bench.running.clear();
    bench.laboratory = None;
    let report = match part {
        Some(mut part) => {
            if end == RunEnd::Complete {
                part.finish(&bench)?;
            }
            part.report()?
        }
        None => {
            bench.report.complete = end == RunEnd::Complete;
            bench.report.seconds = began.elapsed().as_secs_f64();
            bench.write()?;
            bench.report
        }
    };
    progress.close();
    Ok(FinishedRun { report, end })
}

/// Divides steps into their groups.
fn by_group(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let mut groups: Vec<Vec<Step>> = Vec::new();
    for step in steps {
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(|last| last.group == step.group) => {
                group.push(step);
            }
            _ => groups.push(vec![step]),
        }
    }
    groups
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
                tcp: options.tcp,
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
            round_trips: BTreeMap::new(),
            laboratory: None,
            report,
        }
    }

    /// Carries out steps. Returns false if the run was asked to stop.
    fn measure(
        &mut self,
        steps: Vec<Step>,
        stop: &AtomicBool,
        progress: &mut Progress,
        began: Instant,
    ) -> Result<bool> {
        for step in steps {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            progress.begin(&step);
            let outcome = (step.work)(self);
            if let Err(error) = &outcome
                && stop.load(Ordering::Relaxed)
            {
                progress.end(&step.estimate, Some(&format!("stopped: {error}")));
                return Ok(false);
            }
            let reason = outcome.err().map(|error| {
                // If a program has ended, this is the cause of the step's error and the better
                // message.
                let ended = self.ended(&step.contestant);
                ended.unwrap_or(error).one_line()
            });
            progress.end(&step.estimate, reason.as_deref());
            if let Some(reason) = reason {
                self.report.failures.push(Failure {
                    what: step.what,
                    contestant: step.contestant,
                    reason,
                });
            }
            self.report.seconds = began.elapsed().as_secs_f64();
            if self.options.part.is_none() {
                self.write()?;
            }
        }
        Ok(true)
    }

    /// Starts a contestant on new machines, replacing its machines on this kind of link. Returns
    /// the time until the first answer, in seconds.
    fn start(&mut self, contestant: &Rc<dyn Contestant>, link: &Link) -> Result<f64> {
        let key = key(contestant, link);
        let name = format!("{}-{}", key.1, key.0);
        // The old machines go first, because the new ones get the same names.
        self.running.insert(key.clone(), None);
        let mut session = Session::start(&**contestant, &name, link)?;
        session.pair.set_tcp(self.options.tcp)?;
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

    /// Records the load of transfers. The cost in cores is that beyond the last transfers without a
    /// tunnel.
    fn record_load(&mut self, contestant: &Rc<dyn Contestant>, subject: &LoadSubject, load: &Load) {
        let without = self
            .report
            .samples(contestant::REFERENCE, &subject.reference_key());
        let without = without.last().copied();
        let without = without.filter(|_| contestant.id() != contestant::REFERENCE);
        self.record(contestant, subject.load(load, without));
    }

    /// Records round trips; the distribution covers all rounds.
    fn record_round_trips(
        &mut self,
        contestant: &Rc<dyn Contestant>,
        metric: &str,
        found: RoundTrips,
    ) {
        let id = contestant.id().to_owned();
        let key = (id.clone(), metric.to_owned());
        let all = self.round_trips.entry(key).or_default();
        all.extend(found);
        let distributions = &mut self.report.distributions;
        distributions.retain(|known| known.metric != metric || known.contestant != id);
        distributions.push(all.distribution(metric, &id));
    }

    /// Fills the named tables and writes the report.
    fn write(&mut self) -> Result<()> {
        self.report.tables = tables::all(&self.report);
        write_report(&self.options.out, &self.report)
    }
}

/// Writes `report.json` and `report.html` into a folder.
///
/// # Errors
///
/// [`Error::Io`].
pub fn write_report(folder: &Path, report: &Report) -> Result<()> {
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| Error::unmet(format!("cannot encode the report as JSON: {error}")))?;
    replace(&folder.join("report.json"), &json)?;
    replace(&folder.join("report.html"), &report::html(report))
}

fn key(contestant: &Rc<dyn Contestant>, link: &Link) -> (String, String) {
    (contestant.id().to_owned(), link.kind())
}

/// Replaces a file atomically.
fn replace(path: &Path, content: &str) -> Result<()> {
    let draft = path.with_extension("partial");
    let writing = || Error::io(format!("writing {}", path.display()));
    fs::write(&draft, content).map_err(writing())?;
    fs::rename(&draft, path).map_err(writing())
}

//! Estimates the limits of one tunnel on more cores than this machine has: a model, fed with a
//! run's measurements of [`stages`](super::measure::stages).
//!
//! `docs/scaling.md` describes the model; this module computes it.

use crate::measure::stages::{BATCH, PAYLOAD};
use crate::report::figure::digits;
use crate::results::Report;
use std::path::Path;
use taupe_lab::error::{Error, Result};

/// Seconds to hand a batch to another thread and take it back: two cache misses between cores and
/// their locked instructions. This is an assumption, not a measurement. It includes no wake-up,
/// since the thread that is the bottleneck does not sleep.
pub const HANDOVER: f64 = 0.5e-6;

/// Numbers of cores at one end of the tunnel.
const CORES: [u32; 4] = [2, 8, 16, 64];

/// Begin and end of the measured part of the page.
const MARKS: [&str; 2] = ["<!-- measured -->", "<!-- /measured -->"];

/// Cost of one direction per packet, step by step in the order of the path.
#[derive(Debug, Clone, PartialEq)]
struct DirectionCost {
    name: &'static str,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
struct Step {
    name: &'static str,
    seconds: f64,
    /// True if several threads may run this step at the same time for batches of one flow.
    parallel: bool,
}

impl DirectionCost {
    fn all(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }

    fn part(&self, parallel: bool) -> f64 {
        let steps = self.steps.iter().filter(|step| step.parallel == parallel);
        steps.map(|step| step.seconds).sum()
    }

    /// Returns the seconds of the longest step that is serial.
    fn longest(&self) -> f64 {
        let steps = self.steps.iter().filter(|step| !step.parallel);
        steps.map(|step| step.seconds).fold(0.0, f64::max)
    }

    /// Returns packets/s if one thread does everything.
    fn one_thread(&self) -> f64 {
        self.all().recip()
    }

    /// Returns packets/s with one thread for all serial steps and `workers` threads for the
    /// parallel ones.
    fn workers(&self, workers: u32) -> f64 {
        let serial = self.part(false) + HANDOVER / BATCH as f64;
        let parallel = self.part(true) / f64::from(workers.max(1));
        serial.max(parallel).recip()
    }

    /// Returns packets/s with one thread at each end of the path and `workers` threads for the
    /// parallel steps.
    fn pipeline(&self, workers: u32) -> f64 {
        let serial = self.longest() + HANDOVER / BATCH as f64;
        let parallel = self.part(true) / f64::from(workers.max(1));
        serial.max(parallel).recip()
    }
}

/// Both directions of a tunnel, from a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    directions: [DirectionCost; 2],
    /// Measured throughput of the stream in bit/s.
    rate: f64,
}

impl Model {
    /// Reads the costs from a report.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`], with the command that measures them, if the report lacks the costs.
    pub fn new(report: &Report) -> Result<Self> {
        let median = |what: &str| {
            let found = report.summary("taupe", &format!("stages/{what}"));
            found.map(|found| found.median).ok_or_else(|| {
                Error::unmet(format!(
                    "the report has no stages/{what} of taupe: `taupe-lab run --only stages \
                     --contestants taupe` measures it"
                ))
            })
        };
        let step = |name, seconds: f64, parallel| Step {
            name,
            // The cost is a difference of two measurements, and may come out negative.
            seconds: seconds.max(0.0),
            parallel,
        };
        let [split, seal, send] = ["split", "seal", "send"].map(median);
        let [receive, open, merge] = ["receive", "open", "merge"].map(median);
        let (split, seal, send) = (split?, seal?, send?);
        let (receive, open, merge) = (receive?, open?, merge?);
        let out = [median("out/user")?, median("out/system")?];
        let into = [median("in/user")?, median("in/system")?];
        Ok(Self {
            rate: median("rate")?,
            directions: [
                DirectionCost {
                    name: "out",
                    steps: vec![
                        step("read the TUN", out[1] - send, false),
                        step("route, reserve, keep account", out[0] - split - seal, false),
                        step("split and seal", split + seal, true),
                        step("send", send, false),
                    ],
                },
                DirectionCost {
                    name: "in",
                    steps: vec![
                        step("receive", receive, false),
                        step("open", open, true),
                        step(
                            "find the session, keep account",
                            into[0] - open - merge,
                            false,
                        ),
                        step("merge", merge, false),
                        step("write the TUN", into[1] - receive, false),
                    ],
                },
            ],
        })
    }

    /// Returns the packets/s of the slower direction.
    fn tunnel(&self, of: impl Fn(&DirectionCost) -> f64) -> f64 {
        self.directions.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    /// Renders the tables of the page.
    pub fn markdown(&self, report: &Report) -> String {
        let mut page = String::new();
        let machine = &report.machine;
        let mut line = |text: String| {
            page.push_str(&text);
            page.push('\n');
        };
        line(format!(
            "Measured {} on {}, {} cores, Linux {}, by `taupe-lab run --only stages`: medians \
             of {} rounds; the stream made {} Gbit/s meanwhile, with both ends, iperf3 and \
             whatever else ran on those cores.\n",
            report.started,
            machine.processor,
            machine.cores,
            machine.kernel,
            report.samples("taupe", "stages/rate").len(),
            digits(self.rate / 1e9),
        ));
        line("| way | step | ns per packet | µs per batch | |".to_owned());
        line("| --- | --- | ---: | ---: | --- |".to_owned());
        for direction in &self.directions {
            for step in &direction.steps {
                line(format!(
                    "| {} | {} | {} | {} | {} |",
                    direction.name,
                    step.name,
                    digits(step.seconds * 1e9),
                    digits(step.seconds * 1e6 * BATCH as f64),
                    if step.parallel { "parallel" } else { "serial" }
                ));
            }
            line(format!(
                "| {} | **all** | {} | {} | {} % serial |",
                direction.name,
                digits(direction.all() * 1e9),
                digits(direction.all() * 1e6 * BATCH as f64),
                digits(100.0 * direction.part(false) / direction.all()),
            ));
        }
        line(String::new());
        line(
            "| cores at an end | one thread each way | and workers | two threads each way, and workers |"
                .to_owned(),
        );
        line("| ---: | ---: | ---: | ---: |".to_owned());
        let gigabits = |packets: f64| digits(packets * PAYLOAD as f64 * 8.0 / 1e9);
        for cores in CORES {
            // The application that sends the traffic takes one core.
            let workers = |threads: u32| cores.checked_sub(1 + threads).filter(|left| *left > 0);
            let shown = |packets: Option<f64>| packets.map_or("–".to_owned(), gigabits);
            let with = |threads, of: fn(&DirectionCost, u32) -> f64| {
                let workers = workers(threads)?;
                Some(self.tunnel(|direction| of(direction, workers)))
            };
            line(format!(
                "| {cores} | {} | {} | {} |",
                gigabits(self.tunnel(DirectionCost::one_thread)),
                shown(with(1, DirectionCost::workers)),
                shown(with(2, DirectionCost::pipeline)),
            ));
        }
        page
    }
}

/// Replaces the measured part of the page with the tables of a report.
///
/// # Errors
///
/// As [`Model::new`]; [`Error::Io`]; [`Error::Malformed`] for a page without the marks around the
/// tables.
pub fn rewrite(report: &Report, page: &Path) -> Result<()> {
    let what = page.display().to_string();
    let text = std::fs::read_to_string(page).map_err(Error::io(&*what))?;
    let [begin, end] = MARKS;
    let parts = text.split_once(begin);
    let parts = parts.and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let (before, after) = parts.ok_or_else(|| Error::Malformed {
        what: what.clone(),
        why: format!("it has no {begin} with a {end} behind it"),
    })?;
    let tables = Model::new(report)?.markdown(report);
    let new = format!("{before}{begin}\n\n{tables}\n{end}{after}");
    std::fs::write(page, new).map_err(Error::io(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Better, Metric, Unit};

    /// Costs in nanoseconds per packet.
    fn report(costs: [(&str, f64); 10]) -> Report {
        let mut report = Report::default();
        for (what, cost) in costs {
            let metric = Metric::new(format!("stages/{what}"), what, Unit::Seconds, Better::Lower);
            report.record("taupe", &metric, cost * 1e-9);
        }
        let rate = Metric::new("stages/rate", "rate", Unit::BitsPerSecond, Better::Higher);
        report.record("taupe", &rate, 5e9);
        report
    }

    const COSTS: [(&str, f64); 10] = [
        ("split", 100.0),
        ("seal", 300.0),
        ("send", 200.0),
        ("receive", 50.0),
        ("open", 300.0),
        ("merge", 40.0),
        ("out/user", 450.0),
        ("out/system", 500.0),
        ("in/user", 400.0),
        ("in/system", 550.0),
    ];

    fn near(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{found} for {expected}"
        );
    }

    #[test]
    fn a_thread_costs_the_sum_and_a_pipeline_its_longest_step() -> Result<()> {
        let model = Model::new(&report(COSTS))?;
        // 950 ns in each direction.
        near(model.tunnel(DirectionCost::one_thread), 1e9 / 950.0);
        let handover = HANDOVER * 1e9 / BATCH as f64;
        // Out: 550 ns serial, 400 ns parallel. In: 650 ns and 300 ns.
        near(
            model.tunnel(|direction| direction.workers(1)),
            1e9 / (650.0 + handover),
        );
        // The longest steps: reading with 300 ns out, writing with 500 ns in.
        near(
            model.tunnel(|direction| direction.pipeline(9)),
            1e9 / (500.0 + handover),
        );
        // With one worker, encryption limits the outbound direction.
        near(model.directions[0].pipeline(1), 1e9 / 400.0);
        Ok(())
    }

    #[test]
    fn a_report_without_stages_is_an_error_with_a_remedy() {
        let failed = Model::new(&Report::default()).map_err(|error| error.to_string());
        assert!(failed.is_err_and(|why| why.contains("--only stages")));
    }

    #[test]
    fn tables_replace_those_between_the_marks() -> Result<()> {
        let page = std::env::temp_dir().join(format!("taupe-scaling-{}", std::process::id()));
        let write = |text: &str| std::fs::write(&page, text).map_err(Error::io("a page"));
        write("before\n<!-- measured -->\nold\n<!-- /measured -->\nafter\n")?;
        let report = report(COSTS);
        rewrite(&report, &page)?;
        let once = std::fs::read_to_string(&page).map_err(Error::io("a page"))?;
        assert!(
            once.starts_with("before\n") && once.ends_with("\nafter\n"),
            "{once}"
        );
        assert!(
            !once.contains("old") && once.contains("| out | split and seal | 400 |"),
            "{once}"
        );
        rewrite(&report, &page)?;
        let twice = std::fs::read_to_string(&page).map_err(Error::io("a page"))?;
        assert_eq!(once, twice);
        write("no marks")?;
        assert!(rewrite(&report, &page).is_err());
        std::fs::remove_file(&page).map_err(Error::io("a page"))
    }
}

//! What limits one tunnel on more cores than there are here: a model, and what a run's
//! [`stages`](super::measure::stages) say when they are put into it.
//!
//! `docs/scaling.md` says what the model is; this works it out.

use crate::measure::stages::{BATCH, PAYLOAD};
use crate::report::figure::digits;
use crate::results::Report;
use std::path::Path;
use taupe_lab::error::{Error, Result};

/// Seconds of handing a batch to another thread and taking it back, which nothing here
/// measures: two cache misses between cores and their locked instructions. A wake-up is
/// not in it, as who is the limit does not sleep.
pub const HANDOVER: f64 = 0.5e-6;

/// Cores of a machine at one end of the tunnel.
const CORES: [u32; 4] = [2, 8, 16, 64];

/// Where the measured part of the page begins and ends.
const MARKS: [&str; 2] = ["<!-- measured -->", "<!-- /measured -->"];

/// What one direction takes for a packet, in seconds, in the order of the way.
#[derive(Debug, Clone, PartialEq)]
struct Way {
    name: &'static str,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
struct Step {
    name: &'static str,
    seconds: f64,
    /// Whether several threads may do it at a time for batches of one flow.
    parallel: bool,
}

impl Way {
    fn all(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }

    fn part(&self, parallel: bool) -> f64 {
        let steps = self.steps.iter().filter(|step| step.parallel == parallel);
        steps.map(|step| step.seconds).sum()
    }

    /// The longest step that only one thread can be in.
    fn longest(&self) -> f64 {
        let steps = self.steps.iter().filter(|step| !step.parallel);
        steps.map(|step| step.seconds).fold(0.0, f64::max)
    }

    /// Packets/s of one thread that does everything.
    fn one_thread(&self) -> f64 {
        self.all().recip()
    }

    /// Packets/s of one thread for what is serial, and so many that encrypt.
    fn workers(&self, workers: u32) -> f64 {
        let serial = self.part(false) + HANDOVER / BATCH as f64;
        let parallel = self.part(true) / f64::from(workers.max(1));
        serial.max(parallel).recip()
    }

    /// Packets/s of a thread for each of the two ends of the way, and so many that encrypt.
    fn pipeline(&self, workers: u32) -> f64 {
        let serial = self.longest() + HANDOVER / BATCH as f64;
        let parallel = self.part(true) / f64::from(workers.max(1));
        serial.max(parallel).recip()
    }
}

/// The two ways of a tunnel, by a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    ways: [Way; 2],
    /// Bits/s that the stream made while the threads were looked at.
    rate: f64,
}

impl Model {
    /// Takes the costs from a report.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] with how they are measured, where the report has them not.
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
            // A difference of two measurements may come out below nothing.
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
            ways: [
                Way {
                    name: "out",
                    steps: vec![
                        step("read the TUN", out[1] - send, false),
                        step("route, reserve, keep account", out[0] - split - seal, false),
                        step("split and seal", split + seal, true),
                        step("send", send, false),
                    ],
                },
                Way {
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

    /// The slower way's packets/s.
    fn tunnel(&self, of: impl Fn(&Way) -> f64) -> f64 {
        self.ways.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    /// The tables of the page.
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
        for way in &self.ways {
            for step in &way.steps {
                line(format!(
                    "| {} | {} | {} | {} | {} |",
                    way.name,
                    step.name,
                    digits(step.seconds * 1e9),
                    digits(step.seconds * 1e6 * BATCH as f64),
                    if step.parallel { "parallel" } else { "serial" }
                ));
            }
            line(format!(
                "| {} | **all** | {} | {} | {} % serial |",
                way.name,
                digits(way.all() * 1e9),
                digits(way.all() * 1e6 * BATCH as f64),
                digits(100.0 * way.part(false) / way.all()),
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
            // One core is the program's whose traffic it is.
            let workers = |threads: u32| cores.checked_sub(1 + threads).filter(|left| *left > 0);
            let shown = |packets: Option<f64>| packets.map_or("–".to_owned(), gigabits);
            let with = |threads, of: fn(&Way, u32) -> f64| {
                let workers = workers(threads)?;
                Some(self.tunnel(|way| of(way, workers)))
            };
            line(format!(
                "| {cores} | {} | {} | {} |",
                gigabits(self.tunnel(Way::one_thread)),
                shown(with(1, Way::workers)),
                shown(with(2, Way::pipeline)),
            ));
        }
        page
    }
}

/// Puts the tables of a report into the page, in place of those that it has.
///
/// # Errors
///
/// As [`Model::new`]; [`Error::Io`]; [`Error::Malformed`] for a page without the marks that
/// the tables stand between.
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

    /// Nanoseconds for each packet.
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
    fn a_thread_takes_the_sum_and_a_pipeline_its_longest_step() -> Result<()> {
        let model = Model::new(&report(COSTS))?;
        // 950 ns each way.
        near(model.tunnel(Way::one_thread), 1e9 / 950.0);
        let handover = HANDOVER * 1e9 / BATCH as f64;
        // Out: 550 are serial, 400 parallel. In: 650 and 300.
        near(model.tunnel(|way| way.workers(1)), 1e9 / (650.0 + handover));
        // Out's longest is reading with 300, in's writing with 500.
        near(
            model.tunnel(|way| way.pipeline(9)),
            1e9 / (500.0 + handover),
        );
        // With one worker it is the cipher, out.
        near(model.ways[0].pipeline(1), 1e9 / 400.0);
        Ok(())
    }

    #[test]
    fn a_report_without_stages_says_how_to_get_them() {
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

//! Taupe's goals for speed, and whether a run reaches them.
//!
//! These are the project's published goals, defined by the metrics that measure them. Most are
//! ratios to other programs in the same run, because absolute speeds of one machine say little
//! about another. Neither the product nor its tests depend on them.

use crate::measure::stages::{BATCH, PAYLOAD};
use crate::report::figure::{NONE, digits, quantity};
use crate::results::{Report, Unit};
use std::fmt;

/// A goal for one figure.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Title of the goal: `TCP up, 1 stream`.
    pub title: &'static str,
    /// Id of the contestant, or of the handshake in the table of handshakes.
    pub of: &'static str,
    /// The figure.
    pub figure: Figure,
    /// The figure it is compared with.
    pub beside: Beside,
    /// The bound on the figure, or on its ratio to `beside`.
    pub bound: Bound,
    /// Unit of the bound.
    pub unit: Unit,
    /// Metrics that are 1 if something other than the tunnel was the limit.
    pub limits: &'static [&'static str],
}

/// A figure, computed from medians of metrics that are given by their keys.
#[derive(Debug, Clone, Copy)]
pub enum Figure {
    /// The median of a metric.
    Of(&'static str),
    /// The difference between the second metric and the first, divided by the number.
    Each(&'static str, &'static str, f64),
    /// The median of a metric times the number.
    Times(&'static str, f64),
    /// The reciprocal of a metric in seconds.
    Rate(&'static str),
    /// A figure that no report contains; the text says where it is found.
    Elsewhere(&'static str),
}

/// The figure that a goal is compared with.
#[derive(Debug, Clone, Copy)]
pub enum Beside {
    /// None: the bound is absolute.
    Nothing,
    /// The same figure of another contestant.
    Contestant(&'static str),
    /// The least of the same figures of these contestants.
    Least(&'static [&'static str]),
    /// Another figure of the same contestant.
    Own(Figure),
}

/// The bound of a goal.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// Reached by this value or more.
    AtLeast(f64),
    /// Reached by this value or less.
    AtMost(f64),
}

/// Number of full batches in a gigabyte of TCP payload.
const BATCHES_PER_GIGABYTE: f64 = 1e9 / (BATCH * PAYLOAD) as f64;

const OPENVPN: &[&str] = &[
    "openvpn-static-bf",
    "openvpn-static-aes",
    "openvpn-tls-aes",
    "openvpn-tls-chacha",
];

const GO: Beside = Beside::Contestant("wireguard-go");
const DIRECT: Beside = Beside::Contestant("direct");
const TAUPE: Beside = Beside::Contestant("taupe");

/// Contestants of transparent mode: a selected application, and one that is not selected.
const CHOSEN: &str = "taupe-transparent";
const PAST: &str = "direct-past-taupe";

const fn target(title: &'static str, figure: Figure, beside: Beside, bound: Bound) -> Target {
    Target {
        title,
        of: "taupe",
        figure,
        beside,
        bound,
        unit: Unit::Count,
        limits: &[],
    }
}

const fn alone(title: &'static str, figure: Figure, bound: Bound, unit: Unit) -> Target {
    Target {
        unit,
        ..target(title, figure, Beside::Nothing, bound)
    }
}

/// Returns all goals, in the order in which they were published.
pub fn all() -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    use Figure::{Each, Elsewhere, Of, Rate, Times};
    let mut all = Vec::new();
    for (title, key) in [
        ("TCP up, 1 stream", "tcp/1/up"),
        ("TCP down, 1 stream", "tcp/1/down"),
        ("TCP up, 4 streams", "tcp/4/up"),
        ("TCP down, 4 streams", "tcp/4/down"),
    ] {
        all.push(target(title, Of(key), GO, AtLeast(2.5)));
    }
    for (title, key) in [
        ("TCP up, 1 stream", "tcp/1/up"),
        ("TCP down, 1 stream", "tcp/1/down"),
    ] {
        all.push(target(title, Of(key), DIRECT, AtLeast(0.4)));
    }
    let aead = Elsewhere("make bench-micro");
    all.push(alone(
        "AEAD of 1,440 B in a batch, beside AWS-LC",
        aead,
        AtLeast(2.5),
        Unit::Count,
    ));
    for (beside, most) in [
        (Beside::Contestant("boringtun"), 1.0),
        (Beside::Least(OPENVPN), 1.0),
        (DIRECT, 1.35),
    ] {
        all.push(target(
            "qperf tcp_lat, idle",
            Of("qperf/tcp_lat"),
            beside,
            AtMost(most),
        ));
    }
    let loaded = Of("latency/loaded/p99");
    all.push(target("p99 under a TCP stream", loaded, GO, AtMost(0.5)));
    all.push(target(
        "CPU time per GB",
        Of("cost/cpu/total"),
        GO,
        AtMost(0.4),
    ));
    let calls = Times("cost/programs/syscalls/up", 1.0 / BATCHES_PER_GIGABYTE);
    all.push(alone(
        "system calls per full batch, its way",
        calls,
        AtMost(4.3),
        Unit::Count,
    ));
    let calls = Of("cost/programs/syscalls");
    all.push(alone(
        "system calls per GB, both ends",
        calls,
        AtMost(130e3),
        Unit::PerGigabyte,
    ));
    for (title, key, limits) in [
        (
            "UDP of 64 B, sent one by one",
            "udp/64/rate",
            &["udp/64/limit/sender", "udp/64/limit/receiver"],
        ),
        (
            "UDP of 64 B, cut by the kernel",
            "udp/64/gso/rate",
            &["udp/64/gso/limit/sender", "udp/64/gso/limit/receiver"],
        ),
    ] {
        all.push(Target {
            limits,
            ..target(title, Of(key), GO, AtLeast(2.0))
        });
    }
    // The metric covers both ends together; the goal is for one.
    let memory = Times("memory/resident", 0.5);
    all.push(alone(
        "memory of an end, one peer",
        memory,
        AtMost(24e6),
        Unit::Bytes,
    ));
    let slope = Of("memory/slope");
    all.push(alone(
        "memory's growth in 10 minutes",
        slope,
        AtMost(100e3),
        Unit::Bytes,
    ));
    all.push(Target {
        of: "x25519",
        ..alone(
            "handshakes answered by a core",
            Rate("handshake-pq/server"),
            AtLeast(12e3),
            Unit::PerSecond,
        )
    });
    all.extend(handshakes());
    for (title, key) in [
        (
            "kept in a flood without mac1, up",
            "flood/strangers/up/kept",
        ),
        (
            "kept in a flood without mac1, down",
            "flood/strangers/down/kept",
        ),
        ("kept in a flood with mac1, up", "flood/informed/up/kept"),
        (
            "kept in a flood with mac1, down",
            "flood/informed/down/kept",
        ),
    ] {
        all.push(alone(title, Of(key), AtLeast(0.9), Unit::Share));
    }
    let each = Each("peers/1/resident", "peers/100000/resident", 99_999.0);
    all.push(alone(
        "100,000 peers: memory of each",
        each,
        AtMost(1.2e3),
        Unit::Bytes,
    ));
    let configure = Times("peers/100000/add", 1e5);
    all.push(alone(
        "100,000 peers: time to configure",
        configure,
        AtMost(2.0),
        Unit::Seconds,
    ));
    let by_itself = Beside::Own(Of("peers/1/tcp"));
    all.push(target(
        "100,000 peers: TCP of one, beside alone",
        Of("peers/100000/tcp"),
        by_itself,
        AtLeast(0.95),
    ));
    for (title, of, key, beside, least) in [
        (
            "a chosen application, TCP up",
            CHOSEN,
            "tcp/1/up",
            TAUPE,
            0.9,
        ),
        (
            "a chosen application, TCP down",
            CHOSEN,
            "tcp/1/down",
            TAUPE,
            0.9,
        ),
        ("any other, TCP up", PAST, "tcp/1/up", DIRECT, 0.97),
        ("any other, TCP down", PAST, "tcp/1/down", DIRECT, 0.97),
    ] {
        let target = target(title, Of(key), beside, AtLeast(least));
        all.push(Target { of, ..target });
    }
    all
}

/// Returns the goals for hybrid handshakes, compared with a published one in the table of
/// handshakes.
fn handshakes() -> [Target; 9] {
    use Bound::{AtLeast, AtMost};
    use Figure::Of;
    use Unit::{Bytes, PerSecond, Seconds};
    const VANILLA: Beside = Beside::Contestant("x25519");
    let [client, server] = ["handshake-pq/client", "handshake-pq/server"].map(Of);
    let [hybrid, published] =
        ["hybrid-768", "repro-k512-tk512"].map(|of| move |target: Target| Target { of, ..target });
    [
        hybrid(alone("hybrid-768, client", client, AtMost(110e-6), Seconds)),
        hybrid(alone("hybrid-768, server", server, AtMost(100e-6), Seconds)),
        hybrid(target("hybrid-768, client", client, VANILLA, AtMost(2.0))),
        hybrid(target("hybrid-768, server", server, VANILLA, AtMost(2.0))),
        hybrid(alone(
            "hybrid-768, handshakes answered by a core",
            Of("handshake-pq/answered"),
            AtLeast(8e3),
            PerSecond,
        )),
        hybrid(alone(
            "hybrid-768, memory of an idle peer, beyond X25519's",
            Of("handshake-pq/memory"),
            AtMost(3e3),
            Bytes,
        )),
        hybrid(target(
            "hybrid-768, a packet",
            Of("handshake-pq/packet"),
            VANILLA,
            AtMost(1.05),
        )),
        published(alone("K512+tK512, client", client, AtMost(100e-6), Seconds)),
        published(alone("K512+tK512, server", server, AtMost(100e-6), Seconds)),
    ]
}

/// The result of a report for one goal.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// [`Target::title`].
    pub title: &'static str,
    /// Description of the figure it is compared with; empty if there is none.
    pub beside: String,
    /// The measured figure as text.
    pub measured: String,
    /// The figure it is compared with as text, if there is one.
    pub reference: Option<String>,
    /// The value that is compared with the bound.
    pub value: Option<f64>,
    /// The bound as text.
    pub bound: String,
    /// The verdict.
    pub verdict: Verdict,
}

/// Verdict on a goal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The goal is reached.
    Met,
    /// The goal is missed; with a reason if something other than the tunnel may be the cause.
    Missed(Option<String>),
    /// The report cannot tell; with the reason.
    NotMeasured(String),
}

/// The results of a report for all goals.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Returns true if a goal is missed.
    pub fn any_missed(&self) -> bool {
        let missed = |finding: &Finding| matches!(finding.verdict, Verdict::Missed(_));
        self.0.iter().any(missed)
    }
}

/// Compares a report with all goals.
pub fn judge(report: &Report) -> Findings {
    Findings(all().iter().map(|target| target.judge(report)).collect())
}

impl Target {
    fn judge(&self, report: &Report) -> Finding {
        let own = self.figure.read(report, self.of);
        let beside = self.beside(report);
        let value = match (&own, &beside) {
            (Ok((own, _)), None) => Ok(*own),
            (Ok((own, _)), Some((_, Ok((other, _))))) if *other > 0.0 => Ok(own / other),
            (Ok(_), Some((_, Ok(_)))) => Err("nothing to divide by".to_owned()),
            (Err(why), _) | (_, Some((_, Err(why)))) => Err(why.clone()),
        };
        let verdict = match &value {
            Ok(value) if self.bound.holds(*value) => Verdict::Met,
            Ok(_) => Verdict::Missed(self.doubt(report)),
            Err(why) => Verdict::NotMeasured(why.clone()),
        };
        let shown = |figure: &Read| {
            figure
                .as_ref()
                .map_or(NONE.to_owned(), |(value, unit)| quantity(*value, *unit))
        };
        Finding {
            title: self.title,
            measured: shown(&own),
            reference: beside.as_ref().map(|(_, figure)| shown(figure)),
            beside: beside.map(|(name, _)| name).unwrap_or_default(),
            value: value.ok(),
            bound: self.bound.text(self.unit),
            verdict,
        }
    }

    /// Returns the figure it is compared with, and its description.
    fn beside(&self, report: &Report) -> Option<(String, Read)> {
        let of = |id: &str| (id.to_owned(), self.figure.read(report, id));
        match self.beside {
            Beside::Nothing => None,
            Beside::Contestant(id) => Some(of(id)),
            Beside::Own(figure) => Some(("alone".to_owned(), figure.read(report, self.of))),
            Beside::Least(ids) => {
                let size =
                    |found: &(_, Read)| found.1.as_ref().map_or(f64::INFINITY, |found| found.0);
                let all = ids.iter().map(|id| of(id));
                all.min_by(|one, other| size(one).total_cmp(&size(other)))
            }
        }
    }

    /// Returns what limited most of the samples in place of the tunnel, if anything.
    fn doubt(&self, report: &Report) -> Option<String> {
        let limited = |key: &&&str| {
            let found = report.summary(self.of, key);
            found.is_some_and(|found| found.median > 0.5)
        };
        let key = self.limits.iter().find(limited)?;
        let who = key.rsplit('/').next().unwrap_or_default();
        Some(format!("the {who} is the limit"))
    }
}

/// A figure with its unit, or a text about what is missing.
type Read = Result<(f64, Unit), String>;

impl Figure {
    /// Reads the figure of a contestant.
    fn read(self, report: &Report, of: &str) -> Read {
        let median = |key: &str| {
            let found = report.summary(of, key).map(|found| found.median);
            let unit = report.metrics.iter().find(|metric| metric.key == key);
            let found = found.zip(unit.map(|metric| metric.unit));
            found.ok_or_else(|| format!("no {key} of {of}"))
        };
        match self {
            Self::Of(key) => median(key),
            Self::Times(key, factor) => {
                let (value, unit) = median(key)?;
                // The figure is per full batch, no longer per gigabyte.
                let unit = match unit {
                    Unit::PerGigabyte => Unit::Count,
                    other => other,
                };
                Ok((value * factor, unit))
            }
            Self::Each(from, to, count) => {
                let ((from, _), (to, unit)) = (median(from)?, median(to)?);
                Ok(((to - from) / count, unit))
            }
            Self::Rate(key) => match median(key)? {
                (time, Unit::Seconds) if time > 0.0 => Ok((time.recip(), Unit::PerSecond)),
                (other, _) => Err(format!("{key} is no time: {other}")),
            },
            Self::Elsewhere(place) => Err(format!("see {place}")),
        }
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    fn text(self, unit: Unit) -> String {
        let (sign, bound) = match self {
            Self::AtLeast(bound) => ("≥", bound),
            Self::AtMost(bound) => ("≤", bound),
        };
        match unit {
            Unit::Count => format!("{sign} {}", digits(bound)),
            unit => format!("{sign} {}", quantity(bound, unit)),
        }
    }
}

impl fmt::Display for Findings {
    /// Writes a table for a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["", "Taupe", "beside", "", "ratio", "target", ""];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.0.iter().map(Finding::cells));
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| match column {
                // Words are left-aligned, figures right-aligned.
                0 | 3 | 6 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        let count = |what: fn(&Verdict) -> bool| {
            let verdicts = self.0.iter().map(|finding| &finding.verdict);
            verdicts.filter(|verdict| what(verdict)).count()
        };
        writeln!(
            f,
            "{} met, {} missed, {} not measured",
            count(|verdict| *verdict == Verdict::Met),
            count(|verdict| matches!(verdict, Verdict::Missed(_))),
            count(|verdict| matches!(verdict, Verdict::NotMeasured(_))),
        )
    }
}

impl Finding {
    fn cells(&self) -> [String; 7] {
        let verdict = match &self.verdict {
            Verdict::Met => "met".to_owned(),
            Verdict::Missed(None) => "missed".to_owned(),
            Verdict::Missed(Some(why)) => format!("missed ({why})"),
            Verdict::NotMeasured(why) => format!("not measured ({why})"),
        };
        let ratio = self.value.filter(|_| !self.beside.is_empty());
        [
            self.title.to_owned(),
            self.measured.clone(),
            self.reference.clone().unwrap_or_default(),
            self.beside.clone(),
            ratio.map(digits).unwrap_or_default(),
            self.bound.clone(),
            verdict,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Better, Metric};

    fn report(samples: &[(&str, &str, Unit, f64)]) -> Report {
        let mut report = Report::default();
        for (of, key, unit, value) in samples {
            report.record(of, &Metric::new(*key, *key, *unit, Better::Lower), *value);
        }
        report
    }

    fn found(report: &Report, title: &str, beside: &str) -> Finding {
        let all = judge(report).0.into_iter();
        let mut found = all.filter(|one| one.title == title && one.beside.starts_with(beside));
        found.next().expect("such a goal")
    }

    #[test]
    fn a_ratio_is_held_against_its_bound() {
        const BIT: Unit = Unit::BitsPerSecond;
        let of = |own: f64| {
            report(&[
                ("taupe", "tcp/1/up", BIT, own),
                ("wireguard-go", "tcp/1/up", BIT, 2e9),
            ])
        };
        let title = "TCP up, 1 stream";
        let just = found(&of(5e9), title, "wireguard-go");
        assert_eq!((just.value, just.verdict), (Some(2.5), Verdict::Met));
        let less = found(&of(4.9e9), title, "wireguard-go");
        assert_eq!(less.verdict, Verdict::Missed(None));
        let alone = found(&of(5e9), title, "direct");
        let reason = "no tcp/1/up of direct".to_owned();
        assert_eq!(alone.verdict, Verdict::NotMeasured(reason));
    }

    #[test]
    fn the_least_of_a_family_is_the_one_to_beat() {
        const S: Unit = Unit::Seconds;
        let report = report(&[
            ("taupe", "qperf/tcp_lat", S, 45e-6),
            ("openvpn-tls-aes", "qperf/tcp_lat", S, 44e-6),
            ("openvpn-static-aes", "qperf/tcp_lat", S, 60e-6),
        ]);
        let found = found(&report, "qperf tcp_lat, idle", "openvpn");
        assert_eq!(found.beside, "openvpn-tls-aes");
        assert_eq!(found.verdict, Verdict::Missed(None));
    }

    #[test]
    fn what_is_worked_out_is_worked_out() {
        let report = report(&[
            ("taupe", "peers/1/resident", Unit::Bytes, 5e6),
            ("taupe", "peers/100000/resident", Unit::Bytes, 125e6),
            ("taupe", "peers/100000/add", Unit::Seconds, 21e-6),
            ("x25519", "handshake-pq/server", Unit::Seconds, 80e-6),
            (
                "taupe",
                "cost/programs/syscalls/up",
                Unit::PerGigabyte,
                70e3,
            ),
        ]);
        let each = found(&report, "100,000 peers: memory of each", "");
        assert_eq!(
            (&*each.measured, each.verdict),
            ("1.20 kB", Verdict::Missed(None))
        );
        let time = found(&report, "100,000 peers: time to configure", "");
        assert_eq!(
            (&*time.measured, time.verdict),
            ("2.10 s", Verdict::Missed(None))
        );
        let rate = found(&report, "handshakes answered by a core", "");
        assert!(
            rate.value
                .is_some_and(|value| (value - 12_500.0).abs() < 1e-6),
            "{rate:?}"
        );
        assert_eq!(rate.verdict, Verdict::Met);
        // 70,000 calls for 16,244 batches.
        let calls = found(&report, "system calls per full batch, its way", "");
        assert!(
            calls
                .value
                .is_some_and(|value| (value - 4.309).abs() < 0.001),
            "{calls:?}"
        );
        assert_eq!(calls.verdict, Verdict::Missed(None));
    }

    #[test]
    fn a_miss_names_another_limit() {
        let report = report(&[
            ("taupe", "udp/64/rate", Unit::PacketsPerSecond, 150e3),
            ("taupe", "udp/64/limit/sender", Unit::Share, 1.0),
            ("taupe", "udp/64/limit/receiver", Unit::Share, 0.0),
            ("wireguard-go", "udp/64/rate", Unit::PacketsPerSecond, 100e3),
        ]);
        let found = found(&report, "UDP of 64 B, sent one by one", "");
        let reason = "the sender is the limit".to_owned();
        assert_eq!(found.verdict, Verdict::Missed(Some(reason)));
    }

    #[test]
    fn nothing_is_reached_by_an_empty_report() {
        let found = judge(&Report::default());
        assert!(!found.any_missed());
        let text = found.to_string();
        assert!(
            text.ends_with(&format!("0 met, 0 missed, {} not measured\n", all().len())),
            "{text}"
        );
        assert!(text.contains("see make bench-micro"), "{text}");
    }
}

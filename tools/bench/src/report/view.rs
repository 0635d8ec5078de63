//! Prepares a report for display: contestants, sections, and ratios between contestants.

use crate::report::figure::{NONE, Scale, digits, quantity};
use crate::results::{Better, Distribution, Entry, Failure, Metric, Report, Unit};
use crate::statistics::{Ratio, Summary, ratio};
use crate::tcp::{Congestion, DEFAULT_CONGESTION};
use std::collections::BTreeSet;

/// Contestants that all others are compared with: id, and heading of the column of ratios.
pub(super) const REFERENCES: [(&str, &str); 2] =
    [("direct", "no tunnel"), ("wireguard-go", "wireguard-go")];

/// Description of the method that all runs share, a paragraph each.
const METHOD: [&str; 6] = [
    "Each contestant has two machines of its own: network namespaces of one kernel, joined by a \
     virtual Ethernet cable with an MTU of 1,500 bytes unless a table says otherwise. They are \
     measured in turn, round by round (A B C, A B C), so that other load on the machine affects \
     all of them alike.",
    "Client, server and the programs that make the traffic share the machine's cores. A \
     throughput is therefore what both ends manage together, not what either could do on a \
     machine of its own.",
    "Retransmits are counted over a whole transfer, so a faster contestant has more to send \
     again. A quantile of round trips counts all that were started: a lost one is later than any \
     other. If more were lost than a quantile leaves out, there is no figure. qperf's latency is \
     one way: half a round trip.",
    "Early segments are those that a TCP receiver stored because an earlier one was missing: lost \
     or overtaken. Reorderings are the cases in which the sender learned that the missing segment \
     was overtaken, not lost. Duplicates are segments that were sent again needlessly. All three are \
     counted over the transfer. Busy cores include all programs of the machine; their cost per \
     Gbit/s does not include the cores that are busy without a tunnel.",
    "A figure is the median of its samples, ± their median absolute deviation (MAD). The best \
     is the greatest sample where more is better, otherwise the least. Ratios are of medians; \
     their spread adds the relative spreads of both in quadrature. A single sample has no \
     spread, and none is shown.",
    "Prefixes are decimal: 1 GB is 10⁹ bytes, 1 Gbit/s is 10⁹ bits per second. Every sample \
     is in report.json, and “taupe-lab compare OLD.json NEW.json” tells two runs apart.",
];

/// Additional paragraph for reports whose connections begin with [`DEFAULT_CONGESTION`].
const UNPACED: &str = "No connection begins with a congestion control that paces, such as bbr. \
     Each super-packet would then wait for a timer, and the cost of the machine's timers would be \
     measured too.";

/// A report in reading order.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) report: &'a Report,
    /// All contestants, also those that could not run or are not listed but have samples.
    pub(super) contestants: Vec<ContestantView<'a>>,
    /// Metrics by subject, without those of named tables.
    pub(super) sections: Vec<MetricSection<'a>>,
}

/// Metrics of the overview: keys and short headings.
const OVERVIEW: [(&str, &str); 7] = [
    ("tcp/1/up", "TCP up"),
    ("tcp/1/down", "TCP down"),
    ("latency/idle/p50", "idle p50"),
    ("latency/loaded/p99", "loaded p99"),
    ("cost/cpu/total", "CPU"),
    ("memory/resident", "memory"),
    ("startup", "start-up"),
];

/// Explanation above the medians of [`View::overview`].
pub(super) const OVERVIEW_NOTE: &str = "All figures are medians: throughput of one TCP stream; \
     round trips on an idle tunnel, and with one TCP stream up at full speed; the whole machine's \
     processor time per gigabyte; memory of both ends' programs; time from start to the first \
     answer. A round trip can take less than without a tunnel, because a thread that polls for \
     the next packet keeps the processor from halting.";

/// The overview: the few figures that answer most questions.
#[derive(Debug)]
pub(super) struct Overview<'a> {
    pub(super) contestants: Vec<ContestantView<'a>>,
    pub(super) columns: Vec<OverviewColumn>,
}

/// A column of the overview.
#[derive(Debug)]
pub(super) struct OverviewColumn {
    pub(super) title: &'static str,
    /// `Mbit/s`.
    pub(super) unit: &'static str,
    /// A cell for each contestant.
    pub(super) cells: Vec<String>,
}

/// A contestant.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContestantView<'a> {
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    /// Its position, which determines its colour.
    pub(super) place: usize,
    /// True if the run lists it; some metrics have samples of contestants that a run does not
    /// start.
    pub(super) listed: bool,
}

impl ContestantView<'_> {
    /// Returns true for Taupe itself.
    pub(super) fn is_own(&self) -> bool {
        self.id == "taupe"
    }
}

/// The metrics of one subject.
#[derive(Debug)]
pub(super) struct MetricSection<'a> {
    pub(super) subject: Subject,
    pub(super) metrics: Vec<&'a Metric>,
}

impl<'a> MetricSection<'a> {
    /// Returns groups of metrics with the same unit.
    pub(super) fn by_unit(&self) -> impl Iterator<Item = &[&'a Metric]> {
        self.metrics.chunk_by(|one, other| one.unit == other.unit)
    }
}

/// Subject of a group of metrics, in reading order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Throughput,
    Workers,
    Gateway,
    Packets,
    Latency,
    Cost,
    Order,
    Peers,
    Startup,
    Other,
}

impl Subject {
    const ALL: [Self; 10] = [
        Self::Throughput,
        Self::Workers,
        Self::Gateway,
        Self::Packets,
        Self::Latency,
        Self::Cost,
        Self::Order,
        Self::Peers,
        Self::Startup,
        Self::Other,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Throughput => "Throughput",
            Self::Workers => "Throughput over workers",
            Self::Gateway => "A gateway with several clients",
            Self::Packets => "Packets per second",
            Self::Latency => "Latency",
            Self::Cost => "Cost",
            Self::Order => "Order of packets",
            Self::Peers => "Cost over peers",
            Self::Startup => "Start-up",
            Self::Other => "Other figures",
        }
    }

    /// Returns the subject by the first and the last word of the key.
    fn of(key: &str) -> Self {
        let first = key.split('/').next().unwrap_or_default();
        let last = key.rsplit('/').next().unwrap_or_default();
        match (first, last) {
            ("tcp", "cores" | "cores-per-gbit") => return Self::Cost,
            ("tcp" | "gateway", "early" | "reorderings" | "duplicates") => return Self::Order,
            _ => {}
        }
        match first {
            "tcp" => Self::Throughput,
            "workers" => Self::Workers,
            "gateway" => Self::Gateway,
            "udp" => Self::Packets,
            "qperf" if key == "qperf/tcp_bw" => Self::Throughput,
            "qperf" | "latency" | "beside" => Self::Latency,
            "cost" | "memory" => Self::Cost,
            "peers" => Self::Peers,
            "startup" => Self::Startup,
            _ => Self::Other,
        }
    }
}

/// All figures of one metric of one contestant.
#[derive(Debug, Clone, Copy)]
pub(super) struct FigureView {
    pub(super) summary: Summary,
    /// The greatest or the least sample, whichever is better.
    pub(super) best: f64,
    /// Ratio to each of [`REFERENCES`].
    pub(super) ratios: [Option<Ratio>; 2],
}

impl<'a> View<'a> {
    pub(super) fn new(report: &'a Report) -> Self {
        Self {
            report,
            contestants: contestants(report),
            sections: sections(report),
        }
    }

    pub(super) fn figure(&self, contestant: &str, metric: &Metric) -> Option<FigureView> {
        let summary = self.report.summary(contestant, &metric.key)?;
        let ratios = REFERENCES.map(|(reference, _)| {
            let reference = self.report.summary(reference, &metric.key)?;
            ratio(&summary, &reference)
        });
        let best = match metric.better {
            Better::Higher => summary.max,
            Better::Lower => summary.min,
        };
        Some(FigureView {
            summary,
            best,
            ratios,
        })
    }

    /// Returns the overview; `None` if none of its metrics was measured.
    pub(super) fn overview(&self) -> Option<Overview<'a>> {
        let found = OVERVIEW.iter().filter_map(|(key, title)| {
            let mut metrics = self.report.metrics.iter();
            Some((metrics.find(|metric| metric.key == *key)?, *title))
        });
        let found: Vec<(&Metric, &'static str)> = found.collect();
        let metrics: Vec<&Metric> = found.iter().map(|(metric, _)| *metric).collect();
        let contestants = self.expected(&metrics);
        let columns = found.iter().map(|(metric, title)| {
            let scale = self.scale(metric);
            let cells = contestants.iter().map(|contestant| {
                let summary = self.report.summary(contestant.id, &metric.key);
                summary.map_or_else(|| NONE.to_owned(), |found| scale.number(found.median))
            });
            OverviewColumn {
                title,
                unit: scale.name,
                cells: cells.collect(),
            }
        });
        (!found.is_empty()).then(|| Overview {
            columns: columns.collect(),
            contestants: contestants.clone(),
        })
    }

    /// Returns the common scale for all figures of one metric.
    pub(super) fn scale(&self, metric: &Metric) -> Scale {
        Scale::of_all(metric.unit, self.medians(metric))
    }

    /// Returns the medians of all contestants with a figure.
    pub(super) fn medians(&self, metric: &Metric) -> impl Iterator<Item = f64> {
        let all = self.contestants.iter();
        all.filter_map(|one| Some(self.report.summary(one.id, &metric.key)?.median))
    }

    /// Returns the contestants with a figure for any of these metrics.
    pub(super) fn measured(&self, metrics: &[&Metric]) -> Vec<ContestantView<'a>> {
        let all = self.contestants.iter();
        all.filter(|one| self.has(one, metrics)).copied().collect()
    }

    /// Returns these contestants and all that the run lists.
    pub(super) fn expected(&self, metrics: &[&Metric]) -> Vec<ContestantView<'a>> {
        let all = self.contestants.iter();
        all.filter(|one| one.listed || self.has(one, metrics))
            .copied()
            .collect()
    }

    /// Returns the titles of listed contestants that are not in `there`.
    pub(super) fn absent(&self, there: &[ContestantView<'_>]) -> Vec<&'a str> {
        let others = self.contestants.iter();
        let others =
            others.filter(|one| one.listed && !there.iter().any(|other| other.id == one.id));
        others.map(|one| one.title).collect()
    }

    fn has(&self, contestant: &ContestantView<'_>, metrics: &[&Metric]) -> bool {
        let found = |metric: &&Metric| self.report.summary(contestant.id, &metric.key);
        metrics.iter().any(|metric| found(metric).is_some())
    }

    /// Returns the contestant with this id.
    pub(super) fn contestant(&self, id: &str) -> Option<&ContestantView<'a>> {
        self.contestants
            .iter()
            .find(|contestant| contestant.id == id)
    }

    /// Returns its title, or the id if it is not listed.
    pub(super) fn title<'b>(&'b self, id: &'b str) -> &'b str {
        self.contestant(id)
            .map_or(id, |contestant| contestant.title)
    }

    /// Describes a failed measurement.
    pub(super) fn failure(&self, failure: &Failure) -> String {
        let Failure { what, reason, .. } = failure;
        match self.title(&failure.contestant) {
            "" => format!("{what}: {reason}"),
            title => format!("{title}, {what}: {reason}"),
        }
    }

    /// Returns contestants that could not run, with the reason.
    pub(super) fn unavailable(&self) -> impl Iterator<Item = (&'a Entry, &'a str)> {
        self.report.contestants.iter().filter_map(|entry| {
            let reason = entry.unavailable.as_deref()?;
            Some((entry, reason))
        })
    }

    /// Returns the kinds of latency with distributions.
    pub(super) fn distributions(&self) -> Vec<(&'a str, Vec<&'a Distribution>)> {
        let mut kinds: Vec<(&str, Vec<&Distribution>)> = Vec::new();
        for distribution in &self.report.distributions {
            match kinds.iter_mut().find(|kind| kind.0 == distribution.metric) {
                Some(kind) => kind.1.push(distribution),
                None => kinds.push((&distribution.metric, vec![distribution])),
            }
        }
        kinds
    }

    /// Returns keys of series without a metric; their unit is unknown.
    pub(super) fn undescribed(&self) -> Vec<&'a str> {
        let described = |key: &str| self.report.metrics.iter().any(|known| known.key == key);
        let keys: BTreeSet<&str> = self
            .report
            .series
            .iter()
            .map(|series| series.metric.as_str())
            .filter(|key| !described(key))
            .collect();
        keys.into_iter().collect()
    }

    /// Returns facts about the run as pairs of a name and a value.
    pub(super) fn facts(&self) -> Vec<(String, String)> {
        let report = self.report;
        let machine = &report.machine;
        let cores = plural(machine.cores as u64, "core");
        let memory = quantity(machine.memory as f64, Unit::Bytes);
        let mut facts = vec![
            ("Date".to_owned(), report.started.clone()),
            (
                "Machine".to_owned(),
                format!("{}, {cores}, {memory}", machine.processor),
            ),
            ("System".to_owned(), machine.system.clone()),
            ("Kernel".to_owned(), machine.kernel.clone()),
            (
                "TCP congestion control".to_owned(),
                match machine.congestion_control.as_str() {
                    "" => String::new(),
                    own => format!("{} in iperf3, {own} in qperf", report.settings.tcp),
                },
            ),
            ("Settings".to_owned(), self.settings()),
            ("Took".to_owned(), duration(report.seconds)),
        ];
        let versions = report.contestants.iter().filter_map(|entry| {
            let version = entry.version.clone()?;
            Some((entry.title.clone(), version))
        });
        facts.extend(versions);
        let tools = report.tools.iter();
        facts.extend(tools.map(|(name, version)| (name.clone(), version.clone())));
        facts
    }

    /// Describes the method of this run, a paragraph each.
    pub(super) fn method(&self) -> Vec<&'static str> {
        let unpaced = self.report.machine.congestion_control == DEFAULT_CONGESTION
            && self.report.settings.tcp.congestion != Congestion::Bbr;
        METHOD
            .into_iter()
            .chain(unpaced.then_some(UNPACED))
            .collect()
    }

    fn settings(&self) -> String {
        let settings = &self.report.settings;
        let rounds = plural(settings.rounds.into(), "round");
        let kind = match settings.kind.as_str() {
            "bench" | "bench-full" => format!("make {}", settings.kind),
            other => other.to_owned(),
        };
        let each = digits(settings.seconds);
        let link = match settings.link.as_str() {
            "" | "cable" => String::new(),
            other => format!(", on a link of {other}"),
        };
        format!("{kind}: {rounds}, {each} s for each throughput{link}")
    }
}

/// `3 rounds`.
pub(super) fn plural(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

fn duration(seconds: f64) -> String {
    if !(0.0..1e9).contains(&seconds) {
        return "not known".to_owned();
    }
    let seconds = seconds.round() as u64;
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

fn contestants(report: &Report) -> Vec<ContestantView<'_>> {
    let listed = report.contestants.iter();
    let listed = listed.map(|entry| (entry.id.as_str(), entry.title.as_str()));
    let series = report.series.iter().map(|series| &series.contestant);
    let distributions = report.distributions.iter().map(|one| &one.contestant);
    let others = series.chain(distributions).map(|id| (&**id, &**id));
    let mut seen = BTreeSet::new();
    let new = listed.chain(others).filter(|(id, _)| seen.insert(*id));
    new.enumerate()
        .map(|(place, (id, title))| ContestantView {
            id,
            title,
            place,
            listed: report.contestants.iter().any(|entry| entry.id == id),
        })
        .collect()
}

fn sections(report: &Report) -> Vec<MetricSection<'_>> {
    let named = |key: &str| {
        let first = key.split('/').next();
        report
            .tables
            .iter()
            .any(|table| Some(&*table.name) == first)
    };
    let sections = Subject::ALL.map(|subject| {
        let metrics = report.metrics.iter();
        let metrics =
            metrics.filter(|metric| Subject::of(&metric.key) == subject && !named(&metric.key));
        let mut metrics: Vec<&Metric> = metrics.collect();
        // Groups metrics of the same unit, in the order in which the units first appear.
        let units: Vec<Unit> = metrics.iter().map(|metric| metric.unit).collect();
        metrics.sort_by_key(|metric| units.iter().position(|unit| *unit == metric.unit));
        MetricSection { subject, metrics }
    });
    let about = |subject| {
        let latency = subject == Subject::Latency;
        latency && !report.distributions.is_empty()
    };
    sections
        .into_iter()
        .filter(|section| !section.metrics.is_empty() || about(section.subject))
        .collect()
}

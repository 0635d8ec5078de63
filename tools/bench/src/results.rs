//! Results of a run, as stored in `report.json`.
//!
//! The file holds single samples; readers compute the statistics. Quantities are in SI units
//! without prefix (seconds, bit/s, bytes).

use crate::statistics::{Summary, summary};
use crate::tcp::TcpSettings;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use taupe_lab::error::{Error, Result};

/// Version of the file's format; raised when a reader of the old format would misread the file.
pub const FORMAT: u32 = 1;

/// Largest size of a report that is read, in bytes: a hundred times a full run.
const LARGEST: u64 = 64 << 20;

/// The results of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Start time: RFC 3339, UTC.
    pub started: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// False if the run was interrupted.
    pub complete: bool,
    /// Settings of the run.
    pub settings: Settings,
    /// The machine it ran on.
    pub machine: Machine,
    /// Versions of the measuring programs by name: `iperf3` → `3.12`.
    pub tools: BTreeMap<String, String>,
    /// All contestants, also those that could not run, in the order of tables.
    pub contestants: Vec<Entry>,
    /// All metrics, in the order of tables.
    pub metrics: Vec<Metric>,
    /// The samples.
    pub series: Vec<Series>,
    /// Distributions of latency.
    pub distributions: Vec<Distribution>,
    /// Measurements that failed.
    pub failures: Vec<Failure>,
    /// Published comparisons.
    pub tables: Vec<Table>,
}

/// Settings of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `bench`, `bench-full` or `custom`.
    pub kind: String,
    /// Number of samples of each metric.
    pub rounds: u32,
    /// Duration of a measurement of throughput, in seconds.
    pub seconds: f64,
    /// The link between the machines, except in named tables: `cable`, `100mbit`, `loss=1%`. Empty
    /// in old reports, whose link was a cable.
    #[serde(default)]
    pub link: String,
    /// Settings of TCP for the transfers.
    #[serde(default)]
    pub tcp: TcpSettings,
}

/// The machine of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub processor: String,
    /// Number of cores that the kernel schedules on.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Kernel version: `6.18.44`.
    pub kernel: String,
    /// Operating system: `Debian GNU/Linux 12 (bookworm)`.
    pub system: String,
    /// Congestion control of TCP for programs that do not choose one: `reno` for iperf3 and qperf.
    /// In old reports it is the default of the machine.
    #[serde(default)]
    pub congestion_control: String,
}

/// A contestant of a run, also if it could not run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Id as on the command line.
    pub id: String,
    /// Title in tables.
    pub title: String,
    /// Version of the program.
    pub version: Option<String>,
    /// The reason why it could not run here.
    pub unavailable: Option<String>,
}

/// A metric: something that can be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// `tcp/4/up`; keys of a named table begin with its name: `gigabit-2018/tcp_lat`.
    pub key: String,
    /// `TCP up, 4 streams`.
    pub title: String,
    /// Unit of the samples.
    pub unit: Unit,
    /// Direction of improvement.
    pub better: Better,
}

impl Metric {
    /// Creates a metric.
    pub fn new(
        key: impl Into<String>,
        title: impl Into<String>,
        unit: Unit,
        better: Better,
    ) -> Self {
        Self {
            key: key.into(),
            title: title.into(),
            unit,
            better,
        }
    }
}

/// Unit of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Bits per second.
    #[serde(rename = "bit/s")]
    BitsPerSecond,
    /// Packets per second.
    #[serde(rename = "packet/s")]
    PacketsPerSecond,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Seconds per 10⁹ bytes.
    #[serde(rename = "s/GB")]
    SecondsPerGigabyte,
    /// Events per 10⁹ bytes.
    #[serde(rename = "1/GB")]
    PerGigabyte,
    /// Events per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// A count.
    #[serde(rename = "1")]
    Count,
    /// A ratio; 1 is 100 %.
    #[serde(rename = "share")]
    Share,
    /// Cores of the machine.
    #[serde(rename = "core")]
    Cores,
    /// Cores of the machine per 10⁹ bit/s.
    #[serde(rename = "core/(Gbit/s)")]
    CoresPerGigabit,
}

/// Direction of improvement of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// All samples of one metric of one contestant, in the order of rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// [`Metric::key`].
    pub metric: String,
    /// [`Entry::id`].
    pub contestant: String,
    /// Samples in the metric's unit.
    pub samples: Vec<f64>,
}

/// Distribution of one kind of round trips of a contestant, over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// `latency/idle` or `latency/loaded`.
    pub metric: String,
    /// [`Entry::id`].
    pub contestant: String,
    /// Number of round trips.
    pub count: u64,
    /// Number of round trips without an answer.
    pub lost: u64,
    /// Pairs of a share of all round trips (0 to 1, rising) and the seconds within which this share
    /// was answered. Shares that were never answered are absent.
    pub quantiles: Vec<(f64, f64)>,
}

/// A measurement that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// [`Metric::key`], or a description of the step.
    pub what: String,
    /// [`Entry::id`].
    pub contestant: String,
    /// The reason.
    pub reason: String,
}

/// A published comparison and the same comparison on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// `gigabit-2018`.
    pub name: String,
    /// Title of the comparison.
    pub title: String,
    /// Place of publication.
    pub source: String,
    /// The columns after the rows' labels.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Differences from the published set-up, a sentence each.
    pub differences: Vec<String>,
}

/// A column of a [`Table`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The heading.
    pub title: String,
    /// Unit of [`Cell::measured`].
    pub unit: Unit,
}

/// A row of a [`Table`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The label in the first column.
    pub label: String,
    /// The contestant measured here; `None` for a row of published figures only.
    pub contestant: Option<String>,
    /// One cell for each column.
    pub cells: Vec<Cell>,
    /// The reason why cells are empty, or a remark.
    pub note: Option<String>,
}

/// A figure, as published and as measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The published figure as printed: `< 1 s`.
    pub published: Option<String>,
    /// The measured figure in the column's unit: the median, unless the table's title says
    /// otherwise.
    pub measured: Option<f64>,
    /// The median absolute deviation of the samples.
    pub mad: Option<f64>,
}

/// Reads a file of limited size.
///
/// # Errors
///
/// [`Error::Io`]; [`Error::Malformed`] for a file that is too large.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let what = path.display().to_string();
    let mut text = String::new();
    let file = File::open(path).map_err(Error::io(&*what))?;
    let read = file.take(LARGEST + 1).read_to_string(&mut text);
    if read.map_err(Error::io(&*what))? as u64 > LARGEST {
        let why = format!(
            "it is larger than the limit for reports, {} MiB",
            LARGEST >> 20
        );
        return Err(Error::Malformed { what, why });
    }
    Ok(text)
}

impl Report {
    /// Reads a `report.json` of this or another machine.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Malformed`] with the line and the cause, or for an unknown format.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        Self::parse(&text).map_err(|why| Error::Malformed {
            what: path.display().to_string(),
            why,
        })
    }

    /// Parses a report's JSON text. The error names the position and the cause.
    fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let reported = |error: serde_json::Error| {
            let full = error.to_string();
            // serde_json appends the position; this error begins with it.
            let (why, _) = full.rsplit_once(" at line ").unwrap_or((&full, ""));
            format!("line {}, column {}: {why}", error.line(), error.column())
        };
        let form: Form = serde_json::from_str(text).map_err(reported)?;
        if form.format > FORMAT {
            return Err(format!(
                "it has format {}, and this taupe-lab knows {FORMAT}: read it with the \
                 version of Taupe that wrote it, or a newer one",
                form.format
            ));
        }
        serde_json::from_str(text).map_err(reported)
    }

    /// Adds a sample, and the metric if it is new. A sample that is not finite becomes a failure,
    /// since JSON cannot represent it.
    pub fn record(&mut self, contestant: &str, metric: &Metric, sample: f64) {
        if !sample.is_finite() {
            self.failures.push(Failure {
                what: metric.key.clone(),
                contestant: contestant.to_owned(),
                reason: format!("the sample is not a number: {sample}"),
            });
            return;
        }
        if !self.metrics.iter().any(|known| known.key == metric.key) {
            self.metrics.push(metric.clone());
        }
        let known = self
            .series
            .iter_mut()
            .find(|series| series.metric == metric.key && series.contestant == contestant);
        match known {
            Some(series) => series.samples.push(sample),
            None => self.series.push(Series {
                metric: metric.key.clone(),
                contestant: contestant.to_owned(),
                samples: vec![sample],
            }),
        }
    }

    /// Returns the samples of one metric of one contestant; empty if there are none.
    pub fn samples(&self, contestant: &str, metric: &str) -> &[f64] {
        self.series
            .iter()
            .find(|series| series.metric == metric && series.contestant == contestant)
            .map_or(&[], |series| &series.samples)
    }

    /// Returns the summary of these samples; `None` if there are none.
    pub fn summary(&self, contestant: &str, metric: &str) -> Option<Summary> {
        summary(self.samples(contestant, metric))
    }
}

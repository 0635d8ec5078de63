//! Everything that a run has found, as it is written to `report.json`.
//!
//! Samples are kept, not sums: what they mean is worked out by whoever reads them.
//! Quantities are in SI units without prefix (seconds, bit/s, bytes), so that no reader
//! has to guess.

use crate::statistics::{Summary, summary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use taupe_lab::error::{Error, Result};

/// The form of the file; raised when a reader of the former form would misread it.
pub const FORMAT: u32 = 1;

/// The largest file that is read, in bytes: a full run takes a hundredth of it.
const LARGEST: u64 = 64 << 20;

/// A whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// When it began: RFC 3339, UTC.
    pub started: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether it came to its end; not when it was stopped.
    pub complete: bool,
    /// What was asked for.
    pub settings: Settings,
    /// Where it ran.
    pub machine: Machine,
    /// Versions of the measuring programs by name: `iperf3` → `3.12`.
    pub tools: BTreeMap<String, String>,
    /// Who took part or should have, in the order of tables.
    pub contestants: Vec<Entry>,
    /// What was measured, in the order of tables.
    pub metrics: Vec<Metric>,
    /// The samples.
    pub series: Vec<Series>,
    /// Distributions of latency.
    pub distributions: Vec<Distribution>,
    /// What should have been measured and was not.
    pub failures: Vec<Failure>,
    /// Published comparisons.
    pub tables: Vec<Table>,
}

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `bench` or `bench-full`, or `custom`.
    pub kind: String,
    /// How often each thing is measured.
    pub rounds: u32,
    /// How long a measurement of throughput takes, in seconds.
    pub seconds: f64,
    /// What lay between the machines where no named table says something else:
    /// `cable`, `100mbit`, `loss=1%`. Empty in reports of old, which had cables.
    #[serde(default)]
    pub link: String,
}

/// Where a run took place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its processor's name.
    pub processor: String,
    /// How many the kernel schedules on.
    pub cores: usize,
    /// In bytes.
    pub memory: u64,
    /// `6.18.44`.
    pub kernel: String,
    /// `Debian GNU/Linux 12 (bookworm)`.
    pub system: String,
    /// TCP's congestion control where a program does not choose one, which iperf3 is told
    /// to do and qperf cannot: `reno`. Reports from before this was the lab's choice have
    /// the machine's.
    #[serde(default)]
    pub congestion_control: String,
}

/// Who took part or should have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// As on the command line.
    pub id: String,
    /// As in tables.
    pub title: String,
    /// The version that ran.
    pub version: Option<String>,
    /// Why it could not run here.
    pub unavailable: Option<String>,
}

/// Something that can be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// `tcp/4/up`; those of a named table begin with its name: `gigabit-2018/tcp_lat`.
    pub key: String,
    /// `TCP up, 4 streams`.
    pub title: String,
    /// What a sample's 1 means.
    pub unit: Unit,
    /// Which way is good.
    pub better: Better,
}

impl Metric {
    /// A metric.
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

/// What a sample's 1 means.
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
    /// Seconds for 10⁹ bytes.
    #[serde(rename = "s/GB")]
    SecondsPerGigabyte,
    /// How many for 10⁹ bytes.
    #[serde(rename = "1/GB")]
    PerGigabyte,
    /// How many per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// How many.
    #[serde(rename = "1")]
    Count,
    /// A share of 1.
    #[serde(rename = "share")]
    Share,
}

/// Which way is good.
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
    /// In the metric's unit.
    pub samples: Vec<f64>,
}

/// How long round trips took, all of one kind together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// `latency/idle` or `latency/loaded`.
    pub metric: String,
    /// [`Entry::id`].
    pub contestant: String,
    /// How many round trips.
    pub count: u64,
    /// How many of them were never answered.
    pub lost: u64,
    /// Pairs of a share of all (0 to 1, rising) and the seconds within which that share was
    /// answered; none for shares that never were.
    pub quantiles: Vec<(f64, f64)>,
}

/// Something that should have been measured and was not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// [`Metric::key`], or what was being done.
    pub what: String,
    /// [`Entry::id`].
    pub contestant: String,
    /// What happened.
    pub reason: String,
}

/// A published comparison beside the same on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// `gigabit-2018`.
    pub name: String,
    /// What was compared.
    pub title: String,
    /// Where it was published.
    pub source: String,
    /// What is in the columns, after the rows' labels.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Row>,
    /// What is different here from the published set-up, a sentence each.
    pub differences: Vec<String>,
}

/// A column of a [`Table`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// At its head.
    pub title: String,
    /// What [`Cell::measured`] is in.
    pub unit: Unit,
}

/// A row of a [`Table`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// At its beginning.
    pub label: String,
    /// Who was measured here; `None` where only published figures stand.
    pub contestant: Option<String>,
    /// One for each column.
    pub cells: Vec<Cell>,
    /// Why nothing was measured, or what is special.
    pub note: Option<String>,
}

/// A figure, as published and as measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// As it was printed: `< 1 s`.
    pub published: Option<String>,
    /// In the column's unit: the median unless the table's title says otherwise.
    pub measured: Option<f64>,
    /// The median absolute deviation of the samples.
    pub mad: Option<f64>,
}

impl Report {
    /// Reads the `report.json` of a run, of this or another machine.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], and [`Error::Malformed`] with the line and what is wrong there, or
    /// for a form that this program does not know.
    pub fn read(path: &Path) -> Result<Self> {
        let what = path.display().to_string();
        let mut text = String::new();
        let file = File::open(path).map_err(Error::io(&*what))?;
        let read = file.take(LARGEST + 1).read_to_string(&mut text);
        let read = read.map_err(Error::io(&*what))?;
        let malformed = |why: String| Error::Malformed {
            what: what.clone(),
            why,
        };
        if read as u64 > LARGEST {
            let why = format!("it is larger than {} MiB: no report is", LARGEST >> 20);
            return Err(malformed(why));
        }
        Self::parse(&text).map_err(malformed)
    }

    /// Reads a report's JSON text. The error says where and what.
    fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let told = |error: serde_json::Error| {
            let whole = error.to_string();
            // serde_json puts the place at the end; a person looks for it first.
            let (why, _) = whole.rsplit_once(" at line ").unwrap_or((&whole, ""));
            format!("line {}, column {}: {why}", error.line(), error.column())
        };
        let form: Form = serde_json::from_str(text).map_err(told)?;
        if form.format > FORMAT {
            return Err(format!(
                "it has format {}, and this taupe-lab knows {FORMAT}: read it with the \
                 version of Taupe that wrote it, or a newer one",
                form.format
            ));
        }
        serde_json::from_str(text).map_err(told)
    }

    /// Adds a sample, and the metric where it is new. A sample that is not a finite
    /// number becomes a failure, since JSON has no such numbers.
    pub fn record(&mut self, contestant: &str, metric: &Metric, sample: f64) {
        if !sample.is_finite() {
            self.failures.push(Failure {
                what: metric.key.clone(),
                contestant: contestant.to_owned(),
                reason: format!("what was measured is not a number: {sample}"),
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

    /// The samples of one metric of one contestant; none where there are none.
    pub fn samples(&self, contestant: &str, metric: &str) -> &[f64] {
        self.series
            .iter()
            .find(|series| series.metric == metric && series.contestant == contestant)
            .map_or(&[], |series| &series.samples)
    }

    /// What those samples say; `None` where there are none.
    pub fn summary(&self, contestant: &str, metric: &str) -> Option<Summary> {
        summary(self.samples(contestant, metric))
    }
}

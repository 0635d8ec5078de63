//! Published comparisons, repeated on this machine.

pub mod freebsd;
pub mod gigabit;
pub mod handshake;
pub mod kernel;
pub mod mobile;

use crate::results::{Cell, Column, Metric, Report, Row, Table};
use crate::statistics::{Summary, summary};

/// Description of a published comparison.
#[derive(Debug)]
pub struct Description {
    /// `gigabit-2018`.
    pub name: &'static str,
    /// Title of the comparison.
    pub title: &'static str,
    /// Place of publication.
    pub source: &'static str,
    /// The metrics, one for each column. Their keys begin with the table's name.
    pub columns: Vec<Metric>,
    /// The rows from top to bottom.
    pub rows: Vec<DescribedRow>,
    /// The statistic that a figure shows.
    pub statistic: Statistic,
    /// Differences from the published set-up, a sentence each.
    pub differences: Vec<String>,
}

/// A row of a [`Description`].
#[derive(Debug, Clone)]
pub struct DescribedRow {
    /// The label in the first column.
    pub label: String,
    /// The contestant measured here; `None` for a row of published figures only.
    pub contestant: Option<String>,
    /// Figures as printed, one for each column; missing ones at the end were not published.
    pub published: Vec<Option<&'static str>>,
}

impl DescribedRow {
    /// Creates a row with published figures, a measured contestant, or both.
    pub fn new(label: &str, contestant: Option<&str>, published: &[Option<&'static str>]) -> Self {
        Self {
            label: label.to_owned(),
            contestant: contestant.map(str::to_owned),
            published: published.to_vec(),
        }
    }
}

/// The statistic that a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// The median.
    Median,
    /// The greatest sample, for published figures that are the best of several.
    Best,
}

/// Fills a described table with the samples of a report.
pub fn fill(description: &Description, report: &Report) -> Table {
    let columns = description.columns.iter().map(|metric| Column {
        title: metric.title.clone(),
        unit: metric.unit,
    });
    let rows = description.rows.iter().map(|row| {
        let cells = description.columns.iter().enumerate().map(|(at, metric)| {
            let samples = row.contestant.as_deref().map_or(&[][..], |contestant| {
                report.samples(contestant, &metric.key)
            });
            let found = summary(samples);
            let figure = |found: Summary| match description.statistic {
                Statistic::Median => found.median,
                Statistic::Best => found.max,
            };
            Cell {
                published: row.published.get(at).copied().flatten().map(str::to_owned),
                measured: found.map(figure),
                // A single sample has no known deviation, and the deviation does not apply to the
                // best sample.
                mad: found
                    .filter(|found| found.count > 1 && description.statistic == Statistic::Median)
                    .map(|found| found.mad),
            }
        });
        Row {
            label: row.label.clone(),
            contestant: row.contestant.clone(),
            cells: cells.collect(),
            note: row
                .contestant
                .as_deref()
                .and_then(|id| note(description.name, id, report)),
        }
    });
    Table {
        name: description.name.to_owned(),
        title: description.title.to_owned(),
        source: description.source.to_owned(),
        columns: columns.collect(),
        rows: rows.collect(),
        differences: description.differences.clone(),
    }
}

/// Returns every table with a measurement or a failed measurement.
pub fn all(report: &Report) -> Vec<Table> {
    let descriptions = [
        gigabit::description(),
        kernel::description(),
        freebsd::description(),
        handshake::description(),
        mobile::description(),
    ];
    let begun = |name: &str| {
        let of_table = |key: &str| key.split('/').next() == Some(name);
        report.metrics.iter().any(|metric| of_table(&metric.key))
            || report
                .failures
                .iter()
                .any(|failure| of_table(&failure.what))
    };
    descriptions
        .iter()
        .filter(|description| begun(description.name))
        .map(|description| fill(description, report))
        .collect()
}

/// Returns the reason why cells of a row are empty.
fn note(table: &str, contestant: &str, report: &Report) -> Option<String> {
    let entry = report
        .contestants
        .iter()
        .find(|entry| entry.id == contestant);
    // A virtual machine may run a contestant that cannot run on this machine.
    let measured = report.series.iter().any(|series| {
        series.contestant == contestant && series.metric.split('/').next() == Some(table)
    });
    if let Some(reason) = entry.and_then(|entry| entry.unavailable.clone())
        && !measured
    {
        return Some(format!("cannot run here: {reason}"));
    }
    let failed = report.failures.iter().find(|failure| {
        failure.contestant == contestant && failure.what.split('/').next() == Some(table)
    });
    failed.map(|failure| format!("{}: {}", failure.what, failure.reason))
}

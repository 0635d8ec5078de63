//! Published comparisons, done again.

pub mod freebsd;
pub mod gigabit;
pub mod handshake;
pub mod kernel;
pub mod mobile;

use crate::results::{Cell, Column, Metric, Report, Row, Table};
use crate::statistics::{Summary, summary};

/// A published comparison, as it is described in one place.
#[derive(Debug)]
pub struct Description {
    /// `gigabit-2018`.
    pub name: &'static str,
    /// What was compared.
    pub title: &'static str,
    /// Where it was published.
    pub source: &'static str,
    /// What is measured, a column each. The keys begin with the table's name.
    pub columns: Vec<Metric>,
    /// The rows, top down.
    pub rows: Vec<DescribedRow>,
    /// Which of the samples a figure is.
    pub figure: Figure,
    /// What is different here from the published set-up, a sentence each.
    pub differences: Vec<String>,
}

/// A row of a [`Description`].
#[derive(Debug, Clone)]
pub struct DescribedRow {
    /// At its beginning.
    pub label: String,
    /// Whose samples are shown; `None` for what was only published.
    pub contestant: Option<String>,
    /// As printed, one for each column; fewer mean that the rest was not published.
    pub published: Vec<Option<&'static str>>,
}

impl DescribedRow {
    /// A row of what both was published and is measured, or one of both.
    pub fn new(label: &str, contestant: Option<&str>, published: &[Option<&'static str>]) -> Self {
        Self {
            label: label.to_owned(),
            contestant: contestant.map(str::to_owned),
            published: published.to_vec(),
        }
    }
}

/// Which of the samples a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// The one in the middle.
    Median,
    /// The greatest, where the published figure is the best of several.
    Best,
}

/// Fills a described table with what a report holds.
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
            let figure = |found: Summary| match description.figure {
                Figure::Median => found.median,
                Figure::Best => found.max,
            };
            Cell {
                published: row.published.get(at).copied().flatten().map(str::to_owned),
                measured: found.map(figure),
                // One sample has no spread, which is not a spread of zero; and that of the
                // best says nothing of the best.
                mad: found
                    .filter(|found| found.count > 1 && description.figure == Figure::Median)
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

/// Every table of which something was measured, or should have been.
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

/// Why a row is empty, or has holes.
fn note(table: &str, contestant: &str, report: &Report) -> Option<String> {
    let entry = report
        .contestants
        .iter()
        .find(|entry| entry.id == contestant);
    // A guest may have what this machine has not.
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

//! The table of throughput over the number of workers: a row for each contestant and number.

use super::figure::{NONE, Scale};
use super::view::{ContestantView, MetricSection, View};
use crate::results::Metric;
use std::collections::BTreeSet;

/// Ends of the metrics' keys, with their headings.
const COLUMNS: [(&str, &str); 8] = [
    ("up", "TCP up"),
    ("down", "TCP down"),
    ("up/cores", "busy, up"),
    ("down/cores", "busy, down"),
    ("up/cores-per-gbit", "cost, up"),
    ("down/cores-per-gbit", "cost, down"),
    ("up/reorderings", "reorderings, up"),
    ("down/reorderings", "reorderings, down"),
];

/// Explanation above the table.
pub(super) const WORKERS_NOTE: &str = "Medians ± MAD. Workers are the threads that carry packets \
     at each end. A contestant without such a setting has one row. Busy cores include all programs \
     of the machine; the cost does not include the cores that are busy without a tunnel.";

/// The table.
pub(super) struct WorkersTable<'a> {
    /// Headings of the columns after the number of workers, with units.
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<WorkersRow<'a>>,
}

/// The figures of a contestant with one number of workers.
pub(super) struct WorkersRow<'a> {
    pub(super) contestant: ContestantView<'a>,
    /// The number of workers, or a dash for a contestant without this setting.
    pub(super) workers: String,
    pub(super) cells: Vec<String>,
}

/// Returns the table of a section's metrics.
pub(super) fn table<'a>(view: &View<'a>, section: &MetricSection<'a>) -> WorkersTable<'a> {
    let find = |workers: Option<usize>, end: &str| {
        let key = match workers {
            Some(count) => format!("workers/{count}/{end}"),
            None => format!("workers/default/{end}"),
        };
        let mut metrics = section.metrics.iter().copied();
        metrics.find(|metric| metric.key == key)
    };
    let counts = section.metrics.iter().filter_map(|metric| count(metric));
    let counts: BTreeSet<usize> = counts.collect();
    let counts = || std::iter::once(None).chain(counts.iter().copied().map(Some));
    let columns: Vec<(&str, Scale, &str)> = COLUMNS
        .into_iter()
        .filter_map(|(end, title)| {
            let metrics: Vec<&Metric> = counts().filter_map(|count| find(count, end)).collect();
            let unit = metrics.first()?.unit;
            let medians = metrics.iter().flat_map(|metric| view.medians(metric));
            Some((end, Scale::of_all(unit, medians), title))
        })
        .collect();
    let row = |contestant: &ContestantView<'a>, workers: Option<usize>| {
        let figures = columns.iter().map(|(end, scale, _)| {
            let summary = view
                .report
                .summary(contestant.id, &find(workers, end)?.key)?;
            let median = scale.number(summary.median);
            Some(match summary.count {
                1 => median,
                _ => format!("{median} ± {}", scale.deviation(summary.mad)),
            })
        });
        let figures: Vec<Option<String>> = figures.collect();
        figures.iter().any(Option::is_some).then(|| WorkersRow {
            contestant: *contestant,
            workers: workers.map_or_else(|| NONE.to_owned(), |count| count.to_string()),
            cells: figures
                .into_iter()
                .map(|figure| figure.unwrap_or_else(|| NONE.to_owned()))
                .collect(),
        })
    };
    let rows = view
        .contestants
        .iter()
        .flat_map(|contestant| counts().filter_map(move |workers| row(contestant, workers)))
        .collect();
    WorkersTable {
        heads: columns
            .iter()
            .map(|(_, scale, title)| scale.head(title))
            .collect(),
        rows,
    }
}

/// Returns the number in `workers/4/up`.
fn count(metric: &Metric) -> Option<usize> {
    let mut words = metric.key.split('/');
    (words.next() == Some("workers")).then(|| words.next()?.parse().ok())?
}

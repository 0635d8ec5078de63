//! Renders the report as a page of the documentation.

use super::figure::{NONE, Scale, deviation, digits, quantity};
use super::view::{FigureView, MetricSection, OVERVIEW_NOTE, REFERENCES, Subject, View};
use super::workers::{self, WORKERS_NOTE};
use crate::results::{Report, Table};

pub(super) fn page(report: &Report) -> String {
    let view = View::new(report);
    let mut parts = vec![
        "# Benchmarks".to_owned(),
        "This page was written by `taupe-lab` from one run on one machine. Figures of another \
         machine differ; ratios between contestants are easier to compare than speeds. To run it \
         yourself, see [below](#run-it-yourself)."
            .to_owned(),
    ];
    if !report.complete {
        parts.push("**The run was stopped before its end.**".to_owned());
    }
    let facts = view.facts().into_iter();
    let facts = facts.map(|(name, value)| vec![escape(&name), escape(&value)]);
    parts.push(grid(&["".into(), "".into()], facts.collect()));
    overview(&mut parts, &view);
    if !view.sections.is_empty() {
        parts.push(format!(
            "In the tables that follow, a figure is a median ± its median absolute deviation \
             (MAD), and in brackets are the ratios to {} and to {}.",
            REFERENCES[0].1, REFERENCES[1].1
        ));
    }
    for section in &view.sections {
        let contestants = view.expected(&section.metrics);
        if contestants.is_empty() {
            continue;
        }
        parts.push(format!("## {}", section.subject.title()));
        if section.subject == Subject::Workers {
            over_workers(&mut parts, &view, section);
            continue;
        }
        // Four columns of metrics fit on a page.
        for metrics in section.by_unit().flat_map(|metrics| metrics.chunks(4)) {
            let scales: Vec<Scale> = metrics.iter().map(|metric| view.scale(metric)).collect();
            let heads = metrics.iter().zip(&scales);
            let heads = heads.map(|(metric, scale)| escape(&scale.head(&metric.title)));
            let heads: Vec<String> = std::iter::once(String::new()).chain(heads).collect();
            let rows = contestants.iter().map(|contestant| {
                let cells = metrics.iter().zip(&scales).map(|(metric, scale)| {
                    let figure = view.figure(contestant.id, metric);
                    figure.map_or_else(|| NONE.to_owned(), |figure| cell(&figure, *scale))
                });
                std::iter::once(escape(contestant.title))
                    .chain(cells)
                    .collect()
            });
            parts.push(grid(&heads, rows.collect()));
        }
    }
    if !report.tables.is_empty() {
        parts.push("## Published comparisons, done again".to_owned());
    }
    for table in &report.tables {
        named(&mut parts, table);
    }
    missing(&mut parts, &view);
    parts.push("## Method".to_owned());
    parts.extend(view.method().into_iter().map(str::to_owned));
    parts.push("## Run it yourself".to_owned());
    parts.push(
        "On Debian 12, as root, with rustup's stable Rust; what else is needed is installed.\n\n\
         ```sh\n\
         make bench         # every table by name, within ten minutes on two cores\n\
         make bench-full    # everything, ten rounds\n\
         ```\n\n\
         Both leave `target/lab/report.html`, with plots, and `target/lab/report.json`. Nothing \
         else on the machine should be busy meanwhile. Of the published handshakes in \
         `handshake-pq`, those with Rainbow take a program that is built with it, which is slow \
         to build and to make keys:\n\n\
         ```sh\n\
         cargo build --release -p taupe-bench --bin taupe-lab --features rainbow\n\
         target/release/taupe-lab run --only handshake-pq\n\
         ```"
        .to_owned(),
    );
    parts.join("\n\n") + "\n"
}

/// Renders the overview.
fn overview(parts: &mut Vec<String>, view: &View<'_>) {
    let Some(found) = view.overview() else {
        return;
    };
    let columns = &found.columns;
    parts.push("## At a glance".to_owned());
    let heads = columns
        .iter()
        .map(|column| format!("{} ({})", column.title, column.unit));
    let heads: Vec<String> = std::iter::once(String::new()).chain(heads).collect();
    let rows = found
        .contestants
        .iter()
        .enumerate()
        .map(|(at, contestant)| {
            let cells = columns.iter().filter_map(|column| column.cells.get(at));
            std::iter::once(escape(contestant.title))
                .chain(cells.cloned())
                .collect()
        });
    parts.push(grid(&heads, rows.collect()));
    parts.push(OVERVIEW_NOTE.to_owned());
}

/// Renders the table of throughput over the number of workers.
fn over_workers(parts: &mut Vec<String>, view: &View<'_>, section: &MetricSection<'_>) {
    let table = workers::table(view, section);
    let heads = table.heads.iter().map(|head| escape(head));
    let heads = ["".to_owned(), "workers".to_owned()]
        .into_iter()
        .chain(heads);
    let rows = table.rows.into_iter().map(|row| {
        let label = [escape(row.contestant.title), row.workers];
        label.into_iter().chain(row.cells).collect()
    });
    parts.push(grid(&heads.collect::<Vec<_>>(), rows.collect()));
    parts.push(WORKERS_NOTE.to_owned());
}

/// Returns `12.3 ± 0.2 (0.41, 2.30)`.
fn cell(figure: &FigureView, scale: Scale) -> String {
    let summary = figure.summary;
    let mut text = scale.number(summary.median);
    if summary.count > 1 {
        text.push_str(&format!(" ± {}", scale.deviation(summary.mad)));
    }
    if figure.ratios.iter().any(Option::is_some) {
        let ratios = figure
            .ratios
            .map(|ratio| ratio.map_or_else(|| NONE.to_owned(), |ratio| digits(ratio.value)));
        text.push_str(&format!(" ({})", ratios.join(", ")));
    }
    text
}

fn named(parts: &mut Vec<String>, table: &Table) {
    parts.push(format!("### {}", escape(&table.name)));
    parts.push(escape(&format!(
        "{}. Published: {}",
        table.title.trim_end_matches('.'),
        table.source
    )));
    let heads = table.columns.iter().flat_map(|column| {
        let title = escape(&column.title);
        [format!("{title}, published"), format!("{title}, here")]
    });
    let heads: Vec<String> = std::iter::once(String::new()).chain(heads).collect();
    let rows = table.rows.iter().map(|row| {
        let cells = table.columns.iter().enumerate().flat_map(|(at, column)| {
            let cell = row.cells.get(at);
            let published = cell.and_then(|cell| cell.published.as_deref());
            let mut here = cell
                .and_then(|cell| cell.measured)
                .map(|value| quantity(value, column.unit));
            if let (Some(text), Some(mad)) = (&mut here, cell.and_then(|cell| cell.mad)) {
                text.push_str(&format!(" ± {}", deviation(mad, column.unit)));
            }
            [
                published.map_or_else(|| NONE.to_owned(), escape),
                here.unwrap_or_else(|| NONE.to_owned()),
            ]
        });
        std::iter::once(escape(&row.label)).chain(cells).collect()
    });
    parts.push(grid(&heads, rows.collect()));
    let notes = table.rows.iter().filter_map(|row| {
        let note = row.note.as_deref()?;
        Some(escape(&format!("{}: {note}", row.label)))
    });
    list(parts, "", notes);
    let differences = table.differences.iter().map(|text| escape(text));
    list(parts, "Differences from the publication:", differences);
}

fn missing(parts: &mut Vec<String>, view: &View<'_>) {
    let unavailable = view
        .unavailable()
        .map(|(entry, reason)| escape(&format!("{}: {reason}", entry.title)));
    list(parts, "## Could not run here", unavailable);
    let failures = view.report.failures.iter();
    let failures = failures.map(|failure| escape(&view.failure(failure)));
    list(parts, "## Failed", failures);
    let undescribed = view.undescribed().into_iter().map(escape);
    let title = "## Not shown, because the report does not describe them";
    list(parts, title, undescribed);
}

/// Writes a list under a title, unless it is empty.
fn list(parts: &mut Vec<String>, title: &str, items: impl Iterator<Item = String>) {
    let items: Vec<String> = items.map(|item| format!("- {item}")).collect();
    if items.is_empty() {
        return;
    }
    if !title.is_empty() {
        parts.push(title.to_owned());
    }
    parts.push(items.join("\n"));
}

/// Writes a table; the first column is left-aligned, the others right-aligned.
fn grid(heads: &[String], rows: Vec<Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let rule: Vec<String> = (0..heads.len())
        .map(|at| if at == 0 { "---" } else { "---:" }.to_owned())
        .collect();
    let rows = rows.iter().map(|row| line(row));
    let lines = [line(heads), line(&rule)].into_iter().chain(rows);
    lines.collect::<Vec<_>>().join("\n")
}

/// Escapes text for one line of Markdown.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => {
                escaped.push('\\');
                escaped.push(letter);
            }
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

//! Renders the report for a terminal.

use super::figure::{NONE, deviation, digits, quantity};
use super::view::{FigureView, MetricSection, OVERVIEW_NOTE, REFERENCES, Subject, View};
use super::workers::{self, WORKERS_NOTE};
use crate::results::{Metric, Table};
use std::fmt::Write;

/// Number of columns of a line.
const WIDTH: usize = 100;

/// Largest width of a row's label.
const LABEL: usize = 28;

/// Columns between adjacent blocks.
const GAP: usize = 3;

pub(super) fn page(report: &crate::results::Report) -> String {
    let view = View::new(report);
    let mut page = String::new();
    for (name, value) in view.facts() {
        paragraph(&mut page, &format!("{name}: {value}"), "  ");
    }
    if !report.complete {
        paragraph(
            &mut page,
            "This run was stopped before its end: the report is incomplete.",
            "",
        );
    }
    for section in &view.sections {
        let contestants = view.measured(&section.metrics);
        if contestants.is_empty() {
            continue;
        }
        heading(&mut page, section.subject.title());
        if section.subject == Subject::Workers {
            over_workers(&mut page, &view, section);
            continue;
        }
        let labels: Vec<&str> = contestants.iter().map(|one| one.title).collect();
        let ids: Vec<&str> = contestants.iter().map(|one| one.id).collect();
        let blocks = section.metrics.iter();
        let blocks: Vec<Block> = blocks.map(|metric| block(&view, metric, &ids)).collect();
        side_by_side(&mut page, &labels, &blocks);
    }
    for table in &report.tables {
        named(&mut page, table);
    }
    missing(&mut page, &view);
    overview(&mut page, &view);
    page
}

/// Columns under a common title.
struct Block {
    title: String,
    /// Unit of the figures, behind the title; it is never truncated.
    unit: String,
    columns: Vec<Vec<String>>,
}

impl Block {
    /// Creates a block of columns, each a heading and one cell for every row.
    fn new(title: &str, unit: &str, columns: Vec<Vec<String>>) -> Self {
        Self {
            title: line(title),
            unit: match unit {
                "" => String::new(),
                unit => format!(" ({unit})"),
            },
            columns,
        }
    }

    /// Returns the title and the unit in the block's width.
    fn head(&self) -> String {
        let room = self.width().saturating_sub(width(&self.unit));
        cut(&self.title, room) + &self.unit
    }

    fn widths(&self) -> Vec<usize> {
        let longest = |cells: &Vec<String>| cells.iter().map(|cell| width(cell)).max();
        self.columns
            .iter()
            .map(|cells| longest(cells).unwrap_or(0))
            .collect()
    }

    /// Returns the width; a title widens a block to at most half of the space for blocks.
    fn width(&self) -> usize {
        let room = WIDTH - LABEL - GAP;
        let widths = self.widths();
        let columns = widths.iter().sum::<usize>() + widths.len().saturating_sub(1);
        let head = width(&self.title) + width(&self.unit);
        columns.max(head.min(room / 2)).min(room)
    }

    /// Returns the cells of a row, right-aligned in the block's width.
    fn row(&self, at: usize) -> String {
        let cells = self.columns.iter().zip(self.widths());
        let cells = cells.map(|(cells, width)| {
            let cell = cells.get(at).map_or("", String::as_str);
            right(cell, width)
        });
        let row = cells.collect::<Vec<_>>().join(" ");
        right(&cut(&row, self.width()), self.width())
    }
}

/// Creates the block of one metric for all contestants.
fn block(view: &View<'_>, metric: &Metric, contestants: &[&str]) -> Block {
    let scale = view.scale(metric);
    let figures: Vec<Option<FigureView>> = contestants
        .iter()
        .map(|id| view.figure(id, metric))
        .collect();
    let column = |head: &str, cell: &dyn Fn(&FigureView) -> String| {
        let cells = figures.iter();
        let cells = cells.map(|figure| figure.as_ref().map_or_else(|| NONE.to_owned(), cell));
        std::iter::once(head.to_owned()).chain(cells).collect()
    };
    let ratio = |of: usize| {
        move |figure: &FigureView| {
            let ratio = figure.ratios.get(of).copied().flatten();
            ratio.map_or_else(|| NONE.to_owned(), |ratio| digits(ratio.value))
        }
    };
    Block::new(
        &metric.title,
        scale.name,
        vec![
            column("median", &|figure| scale.number(figure.summary.median)),
            column("±MAD", &spread),
            column("best", &|figure| scale.number(figure.best)),
            column("/none", &ratio(0)),
            column("/w-go", &ratio(1)),
        ],
    )
}

/// Returns the deviation as a share of the median.
fn spread(figure: &FigureView) -> String {
    let summary = figure.summary;
    if summary.count < 2 {
        return "once".to_owned();
    }
    let share = summary.mad / summary.median.abs() * 100.0;
    if !share.is_finite() {
        return NONE.to_owned();
    }
    match share {
        share if share < 9.95 => format!("{share:.1}%"),
        share if share < 999.5 => format!("{share:.0}%"),
        _ => ">999%".to_owned(),
    }
}

/// Renders the table of throughput over the number of workers.
fn over_workers(page: &mut String, view: &View<'_>, section: &MetricSection<'_>) {
    let table = workers::table(view, section);
    let labels: Vec<&str> = table.rows.iter().map(|row| row.contestant.title).collect();
    let column = |head: &str, cells: &mut dyn Iterator<Item = String>| {
        Block::new(
            head,
            "",
            vec![std::iter::once(String::new()).chain(cells).collect()],
        )
    };
    let counts = &mut table.rows.iter().map(|row| row.workers.clone());
    let mut blocks = vec![column("workers", counts)];
    for (at, head) in table.heads.iter().enumerate() {
        let cells = table.rows.iter().map(|row| row.cells.get(at).cloned());
        blocks.push(column(head, &mut cells.map(Option::unwrap_or_default)));
    }
    side_by_side(page, &labels, &blocks);
    paragraph(page, WORKERS_NOTE, "");
}

/// Renders a published comparison.
fn named(page: &mut String, table: &Table) {
    heading(page, &line(&format!("{}: {}", table.name, table.title)));
    paragraph(page, &format!("Published: {}", table.source), "  ");
    let labels: Vec<&str> = table.rows.iter().map(|row| row.label.as_str()).collect();
    let blocks = table.columns.iter().enumerate().map(|(at, column)| {
        let mut published = vec!["published".to_owned()];
        let mut here = vec!["here".to_owned()];
        let mut deviations = vec!["±MAD".to_owned()];
        for row in &table.rows {
            let cell = row.cells.get(at);
            let none = || NONE.to_owned();
            let as_printed = cell.and_then(|cell| cell.published.as_deref());
            published.push(as_printed.map_or_else(none, |text| cut(&line(text), 24)));
            let measured = cell.and_then(|cell| cell.measured);
            here.push(measured.map_or_else(none, |value| quantity(value, column.unit)));
            let mad = measured.and(cell.and_then(|cell| cell.mad));
            deviations.push(mad.map_or_else(String::new, |mad| deviation(mad, column.unit)));
        }
        Block::new(&column.title, "", vec![published, here, deviations])
    });
    side_by_side(page, &labels, &blocks.collect::<Vec<_>>());
    for row in &table.rows {
        if let Some(note) = &row.note {
            paragraph(page, &format!("{}: {note}", row.label), "  ");
        }
    }
    if !table.differences.is_empty() {
        page.push_str("Differences from the publication:\n");
    }
    for difference in &table.differences {
        paragraph(page, &format!("- {difference}"), "  ");
    }
}

/// Renders the overview, at the end, because a terminal shows the end.
fn overview(page: &mut String, view: &View<'_>) {
    let Some(found) = view.overview() else {
        return;
    };
    heading(page, "At a glance");
    let labels: Vec<&str> = found.contestants.iter().map(|one| one.title).collect();
    let blocks = found.columns.into_iter().map(|column| {
        let unit = std::iter::once(column.unit.to_owned());
        Block::new(column.title, "", vec![unit.chain(column.cells).collect()])
    });
    side_by_side(page, &labels, &blocks.collect::<Vec<_>>());
    paragraph(page, OVERVIEW_NOTE, "");
}

/// Lists contestants that could not run and measurements that failed.
fn missing(page: &mut String, view: &View<'_>) {
    if view.unavailable().next().is_some() {
        heading(page, "Could not run here");
    }
    for (entry, reason) in view.unavailable() {
        paragraph(page, &format!("{}: {reason}", entry.title), "  ");
    }
    if !view.report.failures.is_empty() {
        heading(page, "Failed");
    }
    for failure in &view.report.failures {
        paragraph(page, &view.failure(failure), "  ");
    }
    let undescribed = view.undescribed();
    if !undescribed.is_empty() {
        heading(page, "Not shown, because the report does not describe them");
        paragraph(page, &undescribed.join(", "), "  ");
    }
    if !view.sections.is_empty() {
        let names = REFERENCES.map(|(_, name)| name);
        page.push('\n');
        paragraph(
            page,
            &format!(
                "±MAD: median absolute deviation in percent of the median. /none and /w-go: \
                 ratio of the median to that of {} and of {}.",
                names[0], names[1]
            ),
            "",
        );
    }
}

/// Writes labelled rows of as many blocks as fit side by side, then of the next ones.
fn side_by_side(page: &mut String, labels: &[&str], blocks: &[Block]) {
    let labels: Vec<String> = labels.iter().map(|text| cut(&line(text), LABEL)).collect();
    let label = labels.iter().map(|text| width(text)).max().unwrap_or(0);
    let mut rest = blocks;
    while !rest.is_empty() {
        let mut used = label;
        let fitting = rest.iter().take_while(|block| {
            used += GAP + block.width();
            used <= WIDTH
        });
        let (now, later) = rest.split_at(fitting.count().max(1));
        rest = later;
        let mut write = |label_text: &str, cells: &dyn Fn(&Block) -> String| {
            let mut text = left(label_text, label);
            for block in now {
                text.push_str(&" ".repeat(GAP));
                text.push_str(&cells(block));
            }
            page.push_str(text.trim_end());
            page.push('\n');
        };
        write("", &|block| left(&block.head(), block.width()));
        write("", &|block| block.row(0));
        for (at, label) in labels.iter().enumerate() {
            write(label, &|block| block.row(at + 1));
        }
        if !rest.is_empty() {
            page.push('\n');
        }
    }
}

fn heading(page: &mut String, text: &str) {
    let text = cut(text, WIDTH);
    let _ = writeln!(page, "\n{text}\n{}", "─".repeat(width(&text)));
}

/// Writes text with line breaks between words; further lines begin with `indent`.
fn paragraph(page: &mut String, text: &str, indent: &str) {
    let mut used = 0;
    for word in line(text).split(' ').filter(|word| !word.is_empty()) {
        if used > 0 && used + 1 + width(word) > WIDTH {
            page.push('\n');
            page.push_str(indent);
            used = width(indent);
        } else if used > 0 {
            page.push(' ');
            used += 1;
        }
        // A word longer than a line is split.
        for letter in word.chars() {
            if used == WIDTH {
                page.push('\n');
                page.push_str(indent);
                used = width(indent);
            }
            page.push(letter);
            used += 1;
        }
    }
    page.push('\n');
}

/// Replaces control characters, line breaks included, with spaces.
fn line(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().map(plain).collect()
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let remaining = text.chars().take(most.saturating_sub(1));
    remaining.chain(std::iter::once('…')).collect()
}

fn left(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(width(text))))
}

fn right(text: &str, to: usize) -> String {
    format!("{}{text}", " ".repeat(to.saturating_sub(width(text))))
}

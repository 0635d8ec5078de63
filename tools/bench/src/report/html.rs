//! Renders the report as a web page in one file.

use super::figure::{NONE, Scale, deviation, digits, quantity};
use super::view::{
    ContestantView, FigureView, MetricSection, OVERVIEW_NOTE, REFERENCES, Subject, View, plural,
};
use super::workers::{self, WORKERS_NOTE};
use crate::results::{Cell, Column, Distribution, Metric, Report, Row, Table, Unit};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plots::Plot;

mod palette;
mod plot;
mod plots;

const STYLE: &str = include_str!("html/style.css");

/// Shares of round trips in the table of latencies.
const SHARES: [(f64, &str); 6] = [
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (1.0, "all"),
];

pub(super) fn page(report: &Report) -> String {
    let view = View::new(report);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // An empty icon, so that browsers fetch nothing.
                link rel="icon" href="data:,";
                title { "Tunnels compared, " (report.started) }
                style { (PreEscaped(palette::css())) (PreEscaped(STYLE)) }
            }
            body {
                header { (head(&view)) }
                main {
                    (overview(&view))
                    @for section in &view.sections { (subject(&view, section)) }
                    @if !report.tables.is_empty() {
                        h2 #published { "Published comparisons, done again" }
                        p { "“Published” is as printed in the source, on the author’s machines; “here” is this run." }
                    }
                    @for (at, table) in report.tables.iter().enumerate() { (named(&view, at, table)) }
                    (missing(&view))
                    h2 #method { "Method" }
                    @for paragraph in view.method() { p { (paragraph) } }
                    (everything(&view))
                }
            }
        }
    };
    page.into_string()
}

fn head(view: &View<'_>) -> Markup {
    let report = view.report;
    html! {
        h1 { "Tunnels compared" }
        p.soft { "Measured by taupe-lab on one machine, between network namespaces." }
        @if !report.complete {
            p.alert { "This run was stopped before its end: the report is incomplete." }
        }
        dl.facts {
            @for (name, value) in view.facts() {
                div { dt { (name) } dd { (value) } }
            }
        }
        nav aria-label="Contents" {
            @for section in &view.sections {
                a href={ "#" (anchor(section.subject)) } { (section.subject.title()) }
            }
            @if !report.tables.is_empty() { a href="#published" { "Published comparisons" } }
            @if !report.failures.is_empty() || view.unavailable().next().is_some() {
                a href="#missing" { "Not measured" }
            }
            a href="#method" { "Method" }
        }
    }
}

/// Renders the overview.
fn overview(view: &View<'_>) -> Markup {
    let Some(found) = view.overview() else {
        return html! {};
    };
    let columns = &found.columns;
    let table = html! {
        table {
            caption { (OVERVIEW_NOTE) }
            thead { tr {
                th scope="col" { "Contestant" }
                @for column in columns { th scope="col" { (column.title) " (" (column.unit) ")" } }
            } }
            tbody {
                @for (at, contestant) in found.contestants.iter().enumerate() {
                    tr.own[contestant.is_own()] {
                        (name(contestant))
                        @for column in columns { td { (column.cells.get(at).map_or(NONE, String::as_str)) } }
                    }
                }
            }
        }
    };
    html! {
        h2 #overview { "At a glance" }
        (boxed("At a glance", table))
    }
}

fn anchor(subject: Subject) -> &'static str {
    match subject {
        Subject::Throughput => "throughput",
        Subject::Workers => "workers",
        Subject::Gateway => "gateway",
        Subject::Packets => "packets",
        Subject::Latency => "latency",
        Subject::Cost => "cost",
        Subject::Order => "order",
        Subject::Peers => "peers",
        Subject::Startup => "startup",
        Subject::Other => "other",
    }
}

/// Renders a section: plots, then figures.
fn subject(view: &View<'_>, section: &MetricSection<'_>) -> Markup {
    let plots = plots::of(view, section);
    html! {
        section aria-labelledby=(anchor(section.subject)) {
            h2 id=(anchor(section.subject)) { (section.subject.title()) }
            @if !plots.is_empty() {
                div.plots { @for plot in &plots { (figure(plot)) } }
            }
            div.tables {
                @if section.subject == Subject::Workers {
                    (over_workers(view, section))
                } @else {
                    @for metrics in section.by_unit() { (figures(view, section.subject, metrics)) }
                }
            }
            @if section.subject == Subject::Latency {
                @for (kind, distributions) in view.distributions() {
                    (latencies(view, kind, &distributions))
                }
            }
        }
    }
}

fn figure(plot: &Plot<'_>) -> Markup {
    html! {
        figure {
            figcaption {
                h3 { (plot.title) }
                p { (plot.caption) }
            }
            (plot.drawing)
            @if !plot.legend.is_empty() {
                ul.legend { @for contestant in &plot.legend { li { (swatch(contestant)) span { (contestant.title) } } } }
            }
            @if !plot.absent.is_empty() {
                p.note { "No figure: " (plot.absent.join("; ")) "." }
            }
        }
    }
}

/// Renders a sample of a contestant's line.
fn swatch(contestant: &ContestantView<'_>) -> Markup {
    let width = if contestant.is_own() { "3" } else { "2" };
    html! {
        svg.swatch.(palette::class(contestant.place)) viewBox="0 0 22 10" aria-hidden="true" {
            line x1="0" x2="22" y1="5" y2="5" stroke="currentColor" stroke-width=(width)
                stroke-dasharray=[palette::dash(contestant.place)] {}
        }
    }
}

/// Puts a wide table into a scrollable box, which also takes the keyboard focus.
fn boxed(label: &str, table: Markup) -> Markup {
    html! { div.box tabindex="0" role="region" aria-label=(label) { (table) } }
}

/// Renders the heading of a contestant's row.
fn name(contestant: &ContestantView<'_>) -> Markup {
    html! {
        th scope="row" {
            span.mark.(palette::class(contestant.place)) {}
            (contestant.title)
        }
    }
}

/// Renders a section's metrics by contestant.
fn figures(view: &View<'_>, subject: Subject, metrics: &[&Metric]) -> Markup {
    let scales: Vec<Scale> = metrics.iter().map(|metric| view.scale(metric)).collect();
    let measured = view.measured(metrics);
    let absent = view.absent(&measured);
    if measured.is_empty() {
        return html! {};
    }
    let columns = || metrics.iter().zip(&scales);
    let table = html! {
        table {
            caption {
                "Median ± MAD; below, the best sample and the ratios of the median to that of "
                (REFERENCES[0].1) " and of " (REFERENCES[1].1) "."
                @if !absent.is_empty() { " No figure: " (absent.join("; ")) "." }
            }
            thead {
                tr {
                    th scope="col" { "Contestant" }
                    @for (metric, scale) in columns() { th scope="col" { (scale.head(&metric.title)) } }
                }
            }
            tbody {
                @for contestant in &measured {
                    tr.own[contestant.is_own()] {
                        (name(contestant))
                        @for (metric, scale) in columns() {
                            td { (cell(view.figure(contestant.id, metric), *scale)) }
                        }
                    }
                }
            }
        }
    };
    boxed(subject.title(), table)
}

fn cell(figure: Option<FigureView>, scale: Scale) -> Markup {
    let Some(figure) = figure else {
        return html! { (NONE) };
    };
    let summary = figure.summary;
    html! {
        (scale.number(summary.median))
        @if summary.count > 1 {
            " ± " (scale.deviation(summary.mad))
            span.sub { "best " (scale.number(figure.best)) }
        } @else {
            span.sub { "once" }
        }
        @if figure.ratios.iter().any(Option::is_some) {
            span.sub {
                @for (at, ratio) in figure.ratios.iter().enumerate() {
                    @if at > 0 { " · " }
                    @match ratio { Some(ratio) => { "×" (digits(ratio.value)) } None => (NONE) }
                }
            }
        }
    }
}

/// Renders the table of throughput over the number of workers.
fn over_workers(view: &View<'_>, section: &MetricSection<'_>) -> Markup {
    let table = workers::table(view, section);
    let grid = html! {
        table {
            caption { (WORKERS_NOTE) }
            thead { tr {
                th scope="col" { "Contestant" }
                th scope="col" { "Workers" }
                @for head in &table.heads { th scope="col" { (head) } }
            } }
            tbody {
                @for row in &table.rows {
                    tr.own[row.contestant.is_own()] {
                        (name(&row.contestant))
                        td { (row.workers) }
                        @for cell in &row.cells { td { (cell) } }
                    }
                }
            }
        }
    };
    boxed(section.subject.title(), grid)
}

/// Renders round trips by share.
fn latencies(view: &View<'_>, kind: &str, distributions: &[&Distribution]) -> Markup {
    let at = |distribution: &Distribution, share: f64| {
        let quantiles = distribution.quantiles.iter();
        let mut near = quantiles.filter(|(known, _)| (known - share).abs() < 1e-9);
        near.next().map(|(_, seconds)| *seconds)
    };
    let shown = SHARES.iter().filter(|(share, _)| {
        let mut all = distributions.iter();
        all.any(|distribution| at(distribution, *share).is_some())
    });
    let shown: Vec<_> = shown.collect();
    let table = html! {
        table {
            caption {
                "Within which time a share of round trips was answered, all rounds together: " (kind) ". "
                (NONE) " where it never was, or too few were measured to tell."
            }
            thead {
                tr {
                    th scope="col" { "Contestant" }
                    @for (_, title) in &shown { th scope="col" { (title) } }
                    th scope="col" { "Round trips" }
                    th scope="col" { "Lost" }
                }
            }
            tbody {
                @for distribution in distributions {
                    @if let Some(contestant) = view.contestant(&distribution.contestant) {
                        tr.own[contestant.is_own()] {
                            (name(contestant))
                            @for (share, _) in &shown {
                                td { (at(distribution, *share).map_or_else(|| NONE.to_owned(), |found| quantity(found, Unit::Seconds))) }
                            }
                            td { (distribution.count) }
                            td { (distribution.lost) }
                        }
                    }
                }
            }
        }
    };
    boxed(kind, table)
}

/// Renders a published comparison beside this run.
fn named(view: &View<'_>, at: usize, table: &Table) -> Markup {
    let notes = table.rows.iter().any(|row| row.note.is_some());
    let id = format!("table-{at}");
    let grid = html! {
        table {
            thead {
                tr {
                    th scope="col" rowspan="2" { (table.name) }
                    @for column in &table.columns {
                        th.pair scope="colgroup" colspan="2" { (column.title) }
                    }
                    @if notes { th.words scope="col" rowspan="2" { "Note" } }
                }
                tr {
                    @for _ in &table.columns {
                        th.unit.pair scope="col" { "published" }
                        th.unit scope="col" { "here" }
                    }
                }
            }
            tbody {
                @for row in &table.rows { (published(view, table, row, notes)) }
            }
        }
    };
    html! {
        section aria-labelledby=(id) {
            h3 id=(id) { (table.title) }
            p.soft { (table.name) ". Published: " (table.source) }
            (boxed(&table.title, grid))
            @if !table.differences.is_empty() {
                p.note { "Differences from the publication:" }
                ul { @for difference in &table.differences { li { (difference) } } }
            }
        }
    }
}

fn published(view: &View<'_>, table: &Table, row: &Row, notes: bool) -> Markup {
    let contestant = row.contestant.as_deref().and_then(|id| view.contestant(id));
    let own = contestant.is_some_and(ContestantView::is_own);
    html! {
        tr.own[own] {
            th scope="row" {
                @if let Some(contestant) = contestant {
                    span.mark.(palette::class(contestant.place)) {}
                }
                (row.label)
            }
            @for (at, column) in table.columns.iter().enumerate() {
                @let cell = row.cells.get(at);
                td.pair { (cell.and_then(|cell| cell.published.as_deref()).unwrap_or(NONE)) }
                td { (here(cell, column)) }
            }
            @if notes { td.words { (row.note.as_deref().unwrap_or_default()) } }
        }
    }
}

fn here(cell: Option<&Cell>, column: &Column) -> Markup {
    let measured = cell.and_then(|cell| cell.measured);
    html! {
        @match measured {
            Some(value) => (quantity(value, column.unit)),
            None => (NONE),
        }
        @if let (Some(_), Some(mad)) = (measured, cell.and_then(|cell| cell.mad)) {
            span.sub { "± " (deviation(mad, column.unit)) }
        }
    }
}

/// Lists contestants that could not run, failed measurements, and series without a metric.
fn missing(view: &View<'_>) -> Markup {
    let failures = &view.report.failures;
    let undescribed = view.undescribed();
    let unavailable: Vec<_> = view.unavailable().collect();
    html! {
        @if !unavailable.is_empty() || !failures.is_empty() || !undescribed.is_empty() {
            h2 #missing { "Not measured" }
        }
        @if !unavailable.is_empty() {
            h3 { "Could not run here" }
            dl { @for (entry, reason) in unavailable { dt { (entry.title) } dd { (reason) } } }
        }
        @if !failures.is_empty() {
            h3 { "Failed" }
            (boxed("Failed", html! {
                table {
                    thead { tr {
                        th scope="col" { "Contestant" } th.words scope="col" { "What" } th.words scope="col" { "Why" }
                    } }
                    tbody {
                        @for failure in failures {
                            tr {
                                th scope="row" { (view.title(&failure.contestant)) }
                                td.words { (failure.what) }
                                td.words { (failure.reason) }
                            }
                        }
                    }
                }
            }))
        }
        @if !undescribed.is_empty() {
            p { "Not shown, because the report does not describe them: " (undescribed.join(", ")) }
        }
    }
}

/// Renders all figures, including those of named tables.
fn everything(view: &View<'_>) -> Markup {
    let rows: Vec<(&Metric, &ContestantView<'_>, FigureView)> = view
        .report
        .metrics
        .iter()
        .flat_map(|metric| {
            view.contestants.iter().filter_map(move |contestant| {
                Some((metric, contestant, view.figure(contestant.id, metric)?))
            })
        })
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let table = html! {
        table {
            thead { tr {
                th scope="col" { "Metric" }
                th.words scope="col" { "Contestant" }
                @for head in ["Samples", "Median", "MAD", "Least", "Greatest"] { th scope="col" { (head) } }
                @for (_, name) in REFERENCES { th scope="col" { "Ratio to " (name) } }
            } }
            tbody {
                @for (metric, contestant, figure) in &rows {
                    @let shown = |value| quantity(value, metric.unit);
                    tr {
                        th scope="row" { (metric.key) }
                        td.words { span.mark.(palette::class(contestant.place)) {} (contestant.title) }
                        td { (figure.summary.count) }
                        td { (shown(figure.summary.median)) }
                        td { @if figure.summary.count > 1 { (deviation(figure.summary.mad, metric.unit)) } @else { (NONE) } }
                        td { (shown(figure.summary.min)) }
                        td { (shown(figure.summary.max)) }
                        @for ratio in &figure.ratios {
                            td { (ratio.map_or_else(|| NONE.to_owned(), |ratio| {
                                let spread = ratio.spread.map(|spread| format!(" ± {}", digits(spread)));
                                digits(ratio.value) + &spread.unwrap_or_default()
                            })) }
                        }
                    }
                }
            }
        }
    };
    html! {
        h2 #everything { "Every figure" }
        details {
            summary { (plural(rows.len() as u64, "figure")) }
            (boxed("Every figure", table))
        }
    }
}

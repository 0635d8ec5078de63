//! Chooses the plots of a report from the metrics it has.

use super::plot::{Axis, Bar, BarChart, BarRow, ChartLine, LineChart};
use crate::report::figure::{Scale, deviation, quantity};
use crate::report::view::{ContestantView, MetricSection, Subject, View};
use crate::results::{Metric, Unit};
use maud::Markup;

/// A drawing with its title, explanation and legend.
pub(super) struct Plot<'a> {
    pub(super) title: String,
    /// Explanation of how to read it.
    pub(super) caption: String,
    pub(super) drawing: Markup,
    /// Contestants whose colours need a legend.
    pub(super) legend: Vec<ContestantView<'a>>,
    /// Contestants that the plot lacks.
    pub(super) absent: Vec<&'a str>,
}

/// Returns the plots of a section.
pub(super) fn of<'a>(view: &View<'a>, section: &MetricSection<'a>) -> Vec<Plot<'a>> {
    let metrics = &section.metrics;
    match section.subject {
        Subject::Throughput => ["up", "down", "both"]
            .into_iter()
            .filter_map(|way| {
                let metrics = counted(metrics, "tcp", way);
                let title = match way {
                    "up" => "TCP, client to server",
                    "down" => "TCP, server to client",
                    _ => "TCP, both ways at once",
                };
                bars(view, title, "A bar for each number of streams.", &metrics)
            })
            .collect(),
        Subject::Packets => {
            let metrics = counted(metrics, "udp", "rate");
            let caption = "A bar for each size of packet, in bytes.";
            bars(view, "UDP packets per second", caption, &metrics)
                .into_iter()
                .collect()
        }
        Subject::Workers => over_ways(view, metrics, "workers", "the number of workers"),
        Subject::Gateway => over_ways(view, metrics, "gateway", "the number of clients"),
        Subject::Latency => latencies(view),
        Subject::Cost => {
            let all = metrics.iter().copied();
            let (loads, metrics): (Vec<&Metric>, Vec<&Metric>) =
                all.partition(|metric| metric.key.starts_with("tcp/"));
            let metrics = &metrics;
            let loads = [
                ("up/cores", "Busy cores, client to server"),
                ("down/cores", "Busy cores, server to client"),
                ("up/cores-per-gbit", "Cost in cores, client to server"),
                ("down/cores-per-gbit", "Cost in cores, server to client"),
            ]
            .into_iter()
            .filter_map(|(last, title)| {
                let caption = "A bar for each number of streams.";
                bars(view, title, caption, &counted(&loads, "tcp", last))
            });
            let loads: Vec<Plot<'a>> = loads.collect();
            let split = splits(metrics);
            // The total is in the same plot as its parts.
            let of_parts = |metric: &&&Metric| {
                metric.key == "cost/cpu/total"
                    || split.iter().any(|(.., parts)| parts.contains(*metric))
            };
            let others: Vec<_> = metrics.iter().filter(|metric| !of_parts(metric)).collect();
            let stacks = split
                .iter()
                .filter_map(|(title, parts)| stacked(view, title, parts));
            let single = others
                .into_iter()
                .filter_map(|metric| bars(view, &metric.title, "", &[(String::new(), *metric)]));
            stacks.chain(single).chain(loads).collect()
        }
        Subject::Order => Vec::new(),
        Subject::Peers => over_peers(view, metrics),
        Subject::Startup => metrics
            .iter()
            .filter_map(|metric| bars(view, &metric.title, "", &[(String::new(), *metric)]))
            .collect(),
        Subject::Other => Vec::new(),
    }
}

/// Returns the metrics `FIRST/NUMBER/LAST` with their numbers in rising order.
fn counted<'a>(metrics: &[&'a Metric], first: &str, last: &str) -> Vec<(String, &'a Metric)> {
    let mut found: Vec<(u64, &Metric)> = metrics
        .iter()
        .filter_map(|metric| {
            let mut words = metric.key.splitn(3, '/');
            let (one, number, rest) = (words.next()?, words.next()?, words.next()?);
            (one == first && rest == last).then_some((number.parse().ok()?, *metric))
        })
        .collect();
    found.sort_by_key(|(number, _)| *number);
    // Metrics of one unit can share an axis.
    let unit = found.first().map(|(_, metric)| metric.unit);
    let alike = found
        .into_iter()
        .filter(|(_, metric)| Some(metric.unit) == unit);
    alike
        .map(|(number, metric)| (number.to_string(), metric))
        .collect()
}

/// Plots medians as bars with whiskers.
fn bars<'a>(
    view: &View<'a>,
    title: &str,
    caption: &str,
    metrics: &[(String, &'a Metric)],
) -> Option<Plot<'a>> {
    let unit = metrics.first()?.1.unit;
    let all: Vec<&Metric> = metrics.iter().map(|(_, metric)| *metric).collect();
    let measured = view.measured(&all);
    let medians = all.iter().flat_map(|metric| view.medians(metric));
    let scale = Scale::of_all(unit, medians.collect::<Vec<_>>());
    let rows = measured.iter().map(|contestant| BarRow {
        contestant: *contestant,
        bars: metrics
            .iter()
            .filter_map(|(tag, metric)| bar(view, contestant.id, tag, metric))
            .collect(),
    });
    let bars = BarChart {
        title: title.to_owned(),
        scale,
        rows: rows.collect(),
    };
    let whiskers = "Median; the line is ± MAD.";
    Some(Plot {
        title: scale.head(title),
        caption: [caption, whiskers].join(" ").trim().to_owned(),
        drawing: bars.draw()?,
        legend: Vec::new(),
        absent: view.absent(&measured),
    })
}

fn bar(view: &View<'_>, contestant: &str, tag: &str, metric: &Metric) -> Option<Bar> {
    let summary = view.report.summary(contestant, &metric.key)?;
    let spread = (summary.count > 1).then_some(summary.mad);
    let value = quantity(summary.median, metric.unit);
    Some(Bar {
        tag: tag.to_owned(),
        parts: vec![summary.median],
        spread,
        value_text: match spread {
            Some(spread) => format!(
                "{}: {value} ± {}",
                metric.title,
                deviation(spread, metric.unit)
            ),
            None => format!("{}: {value}, measured once", metric.title),
        },
    })
}

/// Returns the common beginning of two titles.
fn beginning(one: &str, other: &str) -> Option<String> {
    let letters = one.chars().zip(other.chars());
    let common: String = letters
        .take_while(|(a, b)| a == b)
        .map(|(letter, _)| letter)
        .collect();
    let common = common.trim_end_matches(|letter: char| !letter.is_alphanumeric());
    (!common.is_empty()).then(|| common.to_owned())
}

/// Returns the common end of two titles.
fn shared_end<'a>(one: &'a str, other: &str) -> &'a str {
    let letters = one.char_indices().rev().zip(other.chars().rev());
    let common = letters.take_while(|((_, a), b)| a == b).last();
    common.map_or("", |((at, _), _)| &one[at..])
}

/// Returns pairs of metrics that are the user and the system part of one quantity.
fn splits<'a>(metrics: &[&'a Metric]) -> Vec<(String, [&'a Metric; 2])> {
    let pairs = metrics.iter().filter_map(|user| {
        let stem = user.key.strip_suffix("/user")?;
        let system = metrics
            .iter()
            .find(|metric| metric.key.strip_suffix("/system") == Some(stem))?;
        let title = match stem {
            "cost/cpu" => "CPU, the whole machine".to_owned(),
            "cost/programs" => "CPU, the tunnel’s programs".to_owned(),
            _ => beginning(&user.title, &system.title).unwrap_or_else(|| stem.to_owned()),
        };
        (user.unit == system.unit).then_some((title, [*user, *system]))
    });
    pairs.collect()
}

fn stacked<'a>(view: &View<'a>, title: &str, parts: &[&'a Metric; 2]) -> Option<Plot<'a>> {
    let unit = parts[0].unit;
    let rows: Vec<BarRow<'a>> = view
        .contestants
        .iter()
        .filter_map(|contestant| {
            let both = parts.map(|part| view.report.summary(contestant.id, &part.key));
            let [Some(user), Some(system)] = both else {
                return None;
            };
            let shown = |value| quantity(value, unit);
            Some(BarRow {
                contestant: *contestant,
                bars: vec![Bar {
                    tag: String::new(),
                    parts: vec![user.median, system.median],
                    spread: None,
                    value_text: format!(
                        "user {}, system {}",
                        shown(user.median),
                        shown(system.median)
                    ),
                }],
            })
        })
        .collect();
    let totals = rows.iter().flat_map(|row| &row.bars);
    let scale = Scale::of_all(unit, totals.map(|bar| bar.parts.iter().sum()));
    let measured: Vec<ContestantView<'a>> = rows.iter().map(|row| row.contestant).collect();
    let bars = BarChart {
        title: title.to_owned(),
        scale,
        rows,
    };
    Some(Plot {
        title: scale.head(title),
        caption: "User (full colour) + system (pale), medians.".to_owned(),
        drawing: bars.draw()?,
        legend: Vec::new(),
        absent: view.absent(&measured),
    })
}

/// Plots latency by percentile, as HdrHistogram does.
fn latencies<'a>(view: &View<'a>) -> Vec<Plot<'a>> {
    let kinds = view
        .distributions()
        .into_iter()
        .filter_map(|(kind, distributions)| {
            let title = round_trips_title(kind);
            let lines = distributions.iter().filter_map(|distribution| {
                let contestant = view.contestant(&distribution.contestant)?;
                Some(ChartLine {
                    contestant: *contestant,
                    points: distribution.quantiles.clone(),
                })
            });
            let caption = "Within which time that share of round trips was answered; to the right, \
                    each step has one more nine.";
            line_plot(
                view,
                &title,
                caption,
                Axis::Nines,
                Axis::Log(Unit::Seconds),
                lines.collect(),
            )
        });
    kinds.collect()
}

/// Returns the title for a kind of round trips.
fn round_trips_title(kind: &str) -> String {
    let words: Vec<&str> = kind.split('/').collect();
    match words[..] {
        ["latency", "idle"] => "Round trips, idle".to_owned(),
        ["latency", "loaded"] => "Round trips, under load".to_owned(),
        ["beside", link, "1"] => format!("Round trips beside 1 stream, {link}"),
        ["beside", link, streams] => format!("Round trips beside {streams} streams, {link}"),
        _ => kind.to_owned(),
    }
}

/// Plots `peers/NUMBER/…` over the number.
fn over_peers<'a>(view: &View<'a>, metrics: &[&'a Metric]) -> Vec<Plot<'a>> {
    let mut subjects: Vec<&str> = Vec::new();
    for metric in metrics {
        let subject = metric.key.splitn(3, '/').nth(2);
        subjects.extend(subject.filter(|subject| !subjects.contains(subject)));
    }
    let plots = subjects.into_iter().filter_map(|subject| {
        let numbered = counted(metrics, "peers", subject);
        // The number in the titles is on the axis; the common end of the titles is the plot's
        // title.
        let title = numbered
            .iter()
            .try_fold(None, |ending: Option<&str>, (_, metric)| {
                let shared = match ending {
                    None => &metric.title,
                    Some(ending) => shared_end(ending, &metric.title),
                };
                (!shared.is_empty()).then_some(Some(shared))
            });
        // Titles such as `1000 peers: time to add`.
        let title = title.flatten().filter(|_| numbered.len() > 1);
        let title = title.map(|title| {
            title
                .split_once(": ")
                .map_or(title, |(_, what)| what)
                .trim()
        });
        let title = title.filter(|title| title.starts_with(char::is_alphabetic));
        let title = title.unwrap_or(subject).to_owned();
        let caption = "Over the number of peers.";
        over_number(view, &title, caption, &numbered, None)
    });
    plots.collect()
}

/// Plots the throughput of `FIRST/NUMBER/DIRECTION` over the number, for both directions. A
/// contestant with `FIRST/default/DIRECTION` gets a level line.
fn over_ways<'a>(
    view: &View<'a>,
    metrics: &[&'a Metric],
    first: &str,
    number: &str,
) -> Vec<Plot<'a>> {
    let plots = [
        ("up", "TCP, client to server"),
        ("down", "TCP, server to client"),
    ];
    let plots = plots.into_iter().filter_map(|(way, title)| {
        let level = format!("{first}/default/{way}");
        let level = metrics.iter().find(|metric| metric.key == level).copied();
        let mut caption = format!("Over {number}.");
        if level.is_some() {
            caption.push_str(" Contestants without such a setting have level lines.");
        }
        over_number(view, title, &caption, &counted(metrics, first, way), level)
    });
    plots.collect()
}

/// Plots numbered metrics over the number. Contestants that have only the level metric get a line
/// from the least to the greatest number.
fn over_number<'a>(
    view: &View<'a>,
    title: &str,
    caption: &str,
    metrics: &[(String, &'a Metric)],
    level: Option<&'a Metric>,
) -> Option<Plot<'a>> {
    let unit = metrics.first().map(|(_, metric)| *metric).or(level)?.unit;
    let number = |text: &String| text.parse::<f64>().ok();
    let ends = [metrics.first(), metrics.last()].map(|end| end.and_then(|(text, _)| number(text)));
    let ends: Vec<f64> = ends.map(|end| end.unwrap_or(1.0)).into();
    let lines = view.contestants.iter().map(|contestant| {
        let median = |metric: &Metric| {
            let summary = view.report.summary(contestant.id, &metric.key)?;
            Some(summary.median)
        };
        let points = metrics
            .iter()
            .filter_map(|(text, metric)| Some((number(text)?, median(metric)?)));
        let mut points: Vec<(f64, f64)> = points.collect();
        if points.is_empty()
            && let Some(median) = level.and_then(median)
        {
            points = ends.iter().map(|end| (*end, median)).collect();
            points.dedup();
        }
        ChartLine {
            contestant: *contestant,
            points,
        }
    });
    let lines: Vec<ChartLine<'_>> = lines.filter(|line| !line.points.is_empty()).collect();
    let values = || {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|point| point.1)
    };
    let least = values().fold(f64::MAX, f64::min);
    let wide = least > 0.0 && values().fold(0.0, f64::max) > 20.0 * least;
    let y = if wide {
        Axis::Log(unit)
    } else {
        Axis::Linear(unit)
    };
    line_plot(view, title, caption, Axis::Log(Unit::Count), y, lines)
}

fn line_plot<'a>(
    view: &View<'a>,
    title: &str,
    caption: &str,
    x: Axis,
    y: Axis,
    lines: Vec<ChartLine<'a>>,
) -> Option<Plot<'a>> {
    let legend: Vec<ContestantView<'a>> = lines.iter().map(|line| line.contestant).collect();
    let lines = LineChart {
        title: title.to_owned(),
        x,
        y,
        lines,
    };
    Some(Plot {
        title: title.to_owned(),
        caption: caption.to_owned(),
        drawing: lines.draw()?,
        absent: view.absent(&legend),
        legend,
    })
}

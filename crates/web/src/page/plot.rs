//! Plots as SVG: received traffic above the line, sent traffic below.

use super::units;
use crate::facts::Times;
use crate::history::{Sample, WINDOW};
use maud::{Markup, html};
use std::fmt::Write as _;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 100.0;
const MIDDLE: f64 = HEIGHT / 2.0;

/// Returns the plot of a tunnel with its scale.
pub(super) fn large(samples: &[Sample]) -> Markup {
    let scale = scale(samples);
    html! {
        figure.plot {
            div.area {
                (drawing(samples, scale, "large"))
                span.top-label aria-hidden="true" { (units::rate(scale)) }
                span.bottom-label aria-hidden="true" { (units::rate(scale)) }
            }
            figcaption {
                span { "2 min ago" }
                span.legend {
                    span.key.received {} "received "
                    span.key.sent {} "sent"
                }
                span { "now" }
            }
        }
    }
}

/// Returns the plot of a peer.
pub(super) fn small(samples: &[Sample]) -> Markup {
    drawing(samples, scale(samples), "small")
}

fn drawing(samples: &[Sample], scale: f64, size: &str) -> Markup {
    let (latest, peak) = (samples.last(), peak(samples));
    let label = match latest {
        Some(one) => format!(
            "Receiving {}, sending {}, at most {} in the last 2 minutes",
            units::rate(one.rate.received),
            units::rate(one.rate.sent),
            units::rate(peak)
        ),
        None => "No rate yet".to_owned(),
    };
    let view = format!("0 0 {WIDTH} {HEIGHT}");
    let received = outline(samples, |it| MIDDLE - it.rate.received / scale * MIDDLE);
    let sent = outline(samples, |it| MIDDLE + it.rate.sent / scale * MIDDLE);
    html! {
        svg.rates.(size) viewBox=(view) preserveAspectRatio="none" role="img" aria-label=(label) {
            @if size == "large" {
                @for at in [0.25, 0.5, 0.75] {
                    @let x = at * WIDTH;
                    line.grid x1=(x) x2=(x) y1="0" y2=(HEIGHT) {}
                }
            }
            line.axis x1="0" x2=(WIDTH) y1=(MIDDLE) y2=(MIDDLE) {}
            @for (class, line) in [("received", received), ("sent", sent)] {
                @if let Some((line, area)) = line {
                    path.(class).fill d=(area) {}
                    path.(class).line d=(line) {}
                }
            }
        }
    }
}

/// Returns a line through all samples, and the area between it and the middle.
fn outline(samples: &[Sample], y: impl Fn(&Sample) -> f64) -> Option<(String, String)> {
    let x = |it: &Sample| (1.0 - it.age.as_secs_f64() / WINDOW.as_secs_f64()) * WIDTH;
    let (first, last) = (samples.first()?, samples.last()?);
    let mut line = String::new();
    for (at, sample) in samples.iter().enumerate() {
        let command = if at == 0 { 'M' } else { 'L' };
        // Writing to a string does not fail.
        let _ = write!(line, "{command}{:.1} {:.1}", x(sample), y(sample));
    }
    let area = format!(
        "{line}L{:.1} {MIDDLE:.1}L{:.1} {MIDDLE:.1}Z",
        x(last),
        x(first)
    );
    Some((line, area))
}

fn peak(samples: &[Sample]) -> f64 {
    let rates = samples
        .iter()
        .flat_map(|it| [it.rate.received, it.rate.sent]);
    rates.fold(0.0, f64::max)
}

/// Returns the rate at the top of a plot: 1, 2, 3, 5 or 7 times a power of 10, and at least 1 kbit/s.
fn scale(samples: &[Sample]) -> f64 {
    let peak = peak(samples).max(1000.0);
    let power = 10f64.powf(peak.log10().floor());
    let steps = [1.0, 2.0, 3.0, 5.0, 7.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= peak).unwrap_or(peak)
}

/// Returns a bar for each range of durations.
pub(super) fn bars(times: &Times) -> Markup {
    let most = times.counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let width = 10.0;
    let view = format!("0 0 {} 30", times.counts.len() as f64 * width);
    let [first, last] = [times.bounds.first(), times.bounds.last()];
    let label = match (first, last) {
        (Some(first), Some(last)) => format!(
            "Number of durations by ranges, from at most {} to more than {}",
            units::short(*first),
            units::short(*last)
        ),
        _ => "No durations".to_owned(),
    };
    html! {
        div.ranges {
            svg.bars viewBox=(view) preserveAspectRatio="none" role="img" aria-label=(label) {
                @for (at, count) in times.counts.iter().enumerate() {
                    @let least = if *count > 0 { 2.0 } else { 0.5 };
                    @let height = (*count as f64 / most * 28.0).max(least);
                    rect x=(at as f64 * width + 1.0) y=(format!("{:.1}", 30.0 - height))
                        width=(width - 2.0) height=(format!("{height:.1}")) {}
                }
            }
            @if let (Some(first), Some(last)) = (first, last) {
                span.small aria-hidden="true" { "≤ " (units::short(*first)) }
                span.small aria-hidden="true" { "> " (units::short(*last)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Rate;
    use std::time::Duration;

    fn sample(age: u64, received: f64, sent: f64) -> Sample {
        Sample {
            age: Duration::from_secs(age),
            rate: Rate { received, sent },
        }
    }

    #[test]
    fn rates_are_drawn_to_scale() {
        let samples = [
            sample(120, 0.0, 4e6),
            sample(60, 2e6, 0.0),
            sample(0, 5e6, 1e6),
        ];
        assert_eq!(scale(&samples), 5e6);
        let drawn = large(&samples).into_string();
        assert!(
            drawn.contains("d=\"M0.0 50.0L300.0 30.0L600.0 0.0\""),
            "{drawn}"
        );
        assert!(
            drawn.contains("d=\"M0.0 90.0L300.0 50.0L600.0 60.0\""),
            "{drawn}"
        );
        assert!(
            drawn.contains("Receiving 5.0 Mbit/s, sending 1.0 Mbit/s"),
            "{drawn}"
        );
        assert!(drawn.contains(">5.0 Mbit/s</span>"), "{drawn}");
    }

    #[test]
    fn the_top_is_a_round_number() {
        for (peak, top) in [
            (0.0, 1e3),
            (1e3, 1e3),
            (1001.0, 2e3),
            (3.1e6, 5e6),
            (8e6, 1e7),
        ] {
            assert_eq!(scale(&[sample(0, peak, 0.0)]), top);
        }
        assert!(small(&[]).into_string().contains("No rate yet"));
    }
}

//! Plots as SVG: bars with names above them, and lines over axes.
//!
//! No plotting library fits the page: colours that follow the reader's colour scheme (CSS
//! variables), a text for every mark (`<title>`), names of any length beside bars, a percentile
//! axis, and no dependence on the size of a font. The choice of ticks is the only larger part that
//! a library would have provided.

use super::palette;
use crate::report::figure::{Scale, quantity};
use crate::report::view::ContestantView;
use crate::results::Unit;
use maud::{Markup, html};

/// Width of all plots in pixels.
const WIDTH: f64 = 380.0;

/// Font size of the text in plots.
const FONT: f64 = 11.0;

/// A bar chart with one or more bars for each contestant.
pub(super) struct BarChart<'a> {
    pub(super) title: String,
    /// Scale of the axis and of the numbers beside the bars.
    pub(super) scale: Scale,
    pub(super) rows: Vec<BarRow<'a>>,
}

/// The bars of one contestant.
pub(super) struct BarRow<'a> {
    pub(super) contestant: ContestantView<'a>,
    pub(super) bars: Vec<Bar>,
}

/// A bar of one part, or of several parts that add up.
pub(super) struct Bar {
    /// Label at its beginning: `4` for four streams.
    pub(super) tag: String,
    /// Lengths in the plot's unit.
    pub(super) parts: Vec<f64>,
    /// Deviation of the whole bar; `None` if it is unknown.
    pub(super) spread: Option<f64>,
    /// The bar's values as text.
    pub(super) value_text: String,
}

impl Bar {
    fn length(&self) -> f64 {
        self.parts.iter().map(|part| part.max(0.0)).sum()
    }
}

impl BarChart<'_> {
    /// Draws the plot; `None` if there is nothing to draw.
    pub(super) fn draw(&self) -> Option<Markup> {
        const BAR: f64 = 9.0;
        const STEP: f64 = 12.0;
        const NAME: f64 = 16.0;
        let bars = || self.rows.iter().flat_map(|row| &row.bars);
        let ends = bars().map(|bar| bar.length() + bar.spread.unwrap_or(0.0));
        let largest = ends.filter(|end| end.is_finite()).reduce(f64::max)?;
        let scale = self.scale;
        let tags = bars().map(|bar| width(&bar.tag)).fold(0.0, f64::max);
        let begin = if tags > 0.0 {
            tags.min(60.0) + 5.0
        } else {
            0.0
        };
        let values = bars().map(|bar| width(&value(bar, scale)));
        let end = WIDTH - values.fold(0.0, f64::max).min(110.0) - 6.0;
        let ticks = linear(largest);
        let top = if largest > 0.0 { largest } else { 1.0 };
        let x = |value: f64| begin + (end - begin) * (value / top).clamp(0.0, 1.0);
        let height_of = |row: &BarRow<'_>| NAME + STEP * row.bars.len() as f64 + 5.0;
        let bottom: f64 = self.rows.iter().map(height_of).sum();
        let height = bottom + 18.0;
        let mut y = 0.0;
        Some(html! {
            svg viewBox={ "0 0 " (WIDTH) " " (px(height)) } role="img" aria-label=(self.title) {
                title { (self.title) }
                @for tick in &ticks {
                    line.grid x1=(px(x(*tick))) x2=(px(x(*tick))) y1="0" y2=(px(bottom)) {}
                    (text(x(*tick), bottom + 14.0, Anchor::at(x(*tick), begin), &trimmed(&scale.number(*tick)), "tick"))
                }
                @for row in &self.rows {
                    @let from = { let from = y; y += height_of(row); from };
                    @let name = if row.contestant.is_own() { "name own" } else { "name" };
                    (text(0.0, from + 12.0, Anchor::Start, &fit(row.contestant.title, WIDTH), name))
                    @for (at, bar) in row.bars.iter().enumerate() {
                        @let upper = from + NAME + STEP * at as f64;
                        g class=(palette::class(row.contestant.place)) {
                            title { (row.contestant.title) ": " (bar.value_text) }
                            @for (part, (left, right)) in pieces(bar).into_iter().enumerate() {
                                rect x=(px(x(left))) y=(px(upper)) height=(BAR)
                                    width=(px((x(right) - x(left)).max(0.6)))
                                    fill="currentColor" fill-opacity=[(part > 0).then_some("0.45")] {}
                            }
                            @if let Some((low, high)) = whisker(bar) {
                                line.whisker x1=(px(x(low))) x2=(px(x(high)))
                                    y1=(px(upper + BAR / 2.0)) y2=(px(upper + BAR / 2.0)) {}
                            }
                        }
                        (text(begin - 5.0, upper + 8.5, Anchor::End, &fit(&bar.tag, 60.0), "tick"))
                        @let after = x(bar.length() + bar.spread.unwrap_or(0.0)) + 4.0;
                        (text(after, upper + 8.5, Anchor::Start, &fit(&value(bar, scale), WIDTH - after), "value"))
                    }
                }
            }
        })
    }
}

/// Returns begin and end of each part of a bar.
fn pieces(bar: &Bar) -> Vec<(f64, f64)> {
    let mut end = 0.0;
    let piece = |part: &f64| {
        let begin = end;
        end += part.max(0.0);
        (begin, end)
    };
    bar.parts.iter().map(piece).collect()
}

fn whisker(bar: &Bar) -> Option<(f64, f64)> {
    let spread = bar.spread.filter(|spread| *spread > 0.0)?;
    Some(((bar.length() - spread).max(0.0), bar.length() + spread))
}

fn value(bar: &Bar, scale: Scale) -> String {
    let parts: Vec<String> = bar.parts.iter().map(|part| scale.number(*part)).collect();
    match &parts[..] {
        [whole] => whole.clone(),
        parts => format!("{} = {}", scale.number(bar.length()), parts.join(" + ")),
    }
}

/// A line chart over two axes.
pub(super) struct LineChart<'a> {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<ChartLine<'a>>,
}

/// The line of one contestant.
pub(super) struct ChartLine<'a> {
    pub(super) contestant: ContestantView<'a>,
    /// Points from left to right.
    pub(super) points: Vec<(f64, f64)>,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Axis {
    /// Linear from zero, in this unit.
    Linear(Unit),
    /// Logarithmic; only values above zero are shown.
    Log(Unit),
    /// Shares of 1 by their number of nines: 0.9, 0.99, 0.999.
    Nines,
}

impl Axis {
    /// Returns the position of a value on the axis' ruler; `None` if the axis cannot show it.
    fn place(self, value: f64) -> Option<f64> {
        let place = match self {
            Self::Linear(_) => value,
            Self::Log(_) if value > 0.0 => value.log10(),
            Self::Nines if (0.0..1.0).contains(&value) => -(1.0 - value).log10(),
            Self::Log(_) | Self::Nines => return None,
        };
        place.is_finite().then_some(place)
    }

    /// Returns the range of the axis that holds these values; `None` if there are none.
    fn range(self, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
        let on = values.filter(|value| self.place(*value).is_some());
        let ends = on.fold(None, |ends: Option<(f64, f64)>, value| {
            let (least, most) = ends.unwrap_or((value, value));
            Some((least.min(value), most.max(value)))
        });
        let (least, most) = ends?;
        Some(match self {
            Self::Linear(_) if most > 0.0 => (0.0, most),
            Self::Linear(_) => (0.0, 1.0),
            Self::Log(_) => {
                let (low, high) = (round_below(least), round_above(most));
                // A single value is placed in the middle of a range.
                if low < high {
                    (low, high)
                } else {
                    (low, high * 10.0)
                }
            }
            Self::Nines => (0.0, most.max(0.9)),
        })
    }

    /// Returns the values of the tick marks.
    fn ticks(self, (low, high): (f64, f64)) -> Vec<f64> {
        match self {
            Self::Linear(_) => linear(high),
            Self::Log(_) => logarithmic(low, high),
            Self::Nines => {
                let nines = self.place(high).unwrap_or(1.0) + 1e-9;
                let tick = |nines: u32| 1.0 - 10f64.powi(-(nines as i32));
                let nines = 1..=nines.clamp(1.0, 9.0) as u32;
                [0.0, 0.5].into_iter().chain(nines.map(tick)).collect()
            }
        }
    }

    fn label(self, tick: f64) -> String {
        match self {
            Self::Linear(unit) | Self::Log(unit) => short(tick, unit),
            Self::Nines => {
                let percent = format!("{:.7}", tick * 100.0);
                let percent = percent.trim_end_matches('0').trim_end_matches('.');
                format!("{percent} %")
            }
        }
    }
}

impl LineChart<'_> {
    /// Draws the plot; `None` if there is nothing to draw.
    pub(super) fn draw(&self) -> Option<Markup> {
        const HEIGHT: f64 = 250.0;
        const TOP: f64 = 8.0;
        const BOTTOM: f64 = HEIGHT - 22.0;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_range = self.x.range(points().map(|point| point.0))?;
        let y_range = self.y.range(points().map(|point| point.1))?;
        let (across, up) = (self.x.ticks(x_range), self.y.ticks(y_range));
        let labels = up.iter().map(|tick| width(&self.y.label(*tick)));
        let left = labels.fold(0.0, f64::max).min(90.0) + 6.0;
        let right = WIDTH - 16.0;
        let x_place = ruler(self.x, x_range, left, right)?;
        let y_place = ruler(self.y, y_range, BOTTOM, TOP)?;
        let drawn = self.lines.iter().filter_map(|line| {
            let points = line.points.iter();
            let points = points.filter_map(|(x, y)| Some((x_place(*x)?, y_place(*y)?, *x, *y)));
            let points: Vec<_> = points.collect();
            (!points.is_empty()).then_some((line, points))
        });
        Some(html! {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.title) {
                title { (self.title) }
                @for (tick, y) in up.iter().filter_map(|tick| Some((tick, y_place(*tick)?))) {
                    line.grid x1=(px(left)) x2=(px(right)) y1=(px(y)) y2=(px(y)) {}
                    (text(left - 5.0, y + 4.0, Anchor::End, &self.y.label(*tick), "tick"))
                }
                @for (label, x) in spaced(self.x, &across, &x_place) {
                    line.grid x1=(px(x)) x2=(px(x)) y1=(px(TOP)) y2=(px(BOTTOM)) {}
                    (text(x, BOTTOM + 16.0, Anchor::within(x, &label), &label, "tick"))
                }
                @for (line, points) in drawn {
                    g class=(palette::class(line.contestant.place)) {
                        title { (line.contestant.title) }
                        path.line d=(path(&points)) stroke-dasharray=[palette::dash(line.contestant.place)]
                            stroke-width=[line.contestant.is_own().then_some("2.5")] {}
                        // Marks only a few points; many points form a curve, not single
                        // measurements.
                        @if points.len() <= 12 {
                            @for (x, y, at, value) in &points {
                                circle cx=(px(*x)) cy=(px(*y)) r="2.5" fill="currentColor" {
                                    title {
                                        (line.contestant.title) ", " (self.x.label(*at)) ": "
                                        (self.y.label(*value))
                                    }
                                }
                            }
                        }
                    }
                }
            }
        })
    }
}

/// Returns a function from values to page coordinates between `from` and `to`.
fn ruler(
    axis: Axis,
    (low, high): (f64, f64),
    from: f64,
    to: f64,
) -> Option<impl Fn(f64) -> Option<f64>> {
    let first = axis.place(low)?;
    let last = axis.place(high)?;
    let span = if last > first { last - first } else { 1.0 };
    Some(move |value: f64| {
        let share = (axis.place(value)? - first) / span;
        Some(from + (to - from) * share.clamp(0.0, 1.0))
    })
}

/// Returns those ticks of a horizontal axis whose labels do not touch.
fn spaced(axis: Axis, ticks: &[f64], place: &impl Fn(f64) -> Option<f64>) -> Vec<(String, f64)> {
    let mut free = f64::MIN;
    let ticks = ticks.iter().filter_map(|tick| {
        let (label, x) = (axis.label(*tick), place(*tick)?);
        let half = width(&label) / 2.0;
        if x - half < free {
            return None;
        }
        free = x + half + 4.0;
        Some((label, x))
    });
    ticks.collect()
}

fn path(points: &[(f64, f64, f64, f64)]) -> String {
    let step = |(at, (x, y, ..)): (usize, &(f64, f64, f64, f64))| {
        let letter = if at == 0 { 'M' } else { 'L' };
        format!("{letter}{} {}", px(*x), px(*y))
    };
    points.iter().enumerate().map(step).collect()
}

/// Returns about four round values from zero to at most `most`.
fn linear(most: f64) -> Vec<f64> {
    if !(most > 0.0 && most < 1e300) {
        return vec![0.0];
    }
    let rough = most / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.999);
    let step = step.filter(|step| step.is_normal()).unwrap_or(most);
    let count = (most / step + 1e-9).floor().clamp(1.0, 8.0) as u32;
    (0..=count).map(|at| f64::from(at) * step).collect()
}

/// Returns powers of ten between two values, but not too many; with steps of 1, 2, 5 if the range
/// is small.
fn logarithmic(low: f64, high: f64) -> Vec<f64> {
    let first = low.log10().floor().max(-300.0) as i32;
    let last = high.log10().ceil().min(300.0) as i32;
    let inside = |tick: &f64| (low * 0.999..=high * 1.001).contains(tick);
    let every = if last - first > 8 {
        (last - first) / 5
    } else {
        1
    };
    let powers = (first..=last).step_by(every.unsigned_abs() as usize);
    let powers = powers.map(|power| 10f64.powi(power));
    if last - first > 3 {
        return powers.filter(inside).collect();
    }
    let fine = powers.flat_map(|ten| [ten, 2.0 * ten, 5.0 * ten]);
    fine.filter(inside).collect()
}

/// Returns the largest of 1, 2, 5, 10 … that does not exceed the value.
fn round_below(value: f64) -> f64 {
    let ten = 10f64.powf(value.log10().floor());
    let steps = [5.0, 2.0].map(|step| step * ten);
    let found = steps.into_iter().find(|step| *step <= value * 1.001);
    found.unwrap_or(ten).max(f64::MIN_POSITIVE)
}

/// Returns the smallest of 1, 2, 5, 10 … that is not below the value.
fn round_above(value: f64) -> f64 {
    let ten = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|step| step * ten);
    let found = steps.into_iter().find(|step| *step >= value * 0.999);
    found.unwrap_or(10.0 * ten).min(1e308)
}

/// Formats a tick's value without needless decimals.
fn short(value: f64, unit: Unit) -> String {
    let text = quantity(value, unit);
    let (number, name) = text.split_once(' ').unwrap_or((&text, ""));
    format!("{} {name}", trimmed(number)).trim_end().to_owned()
}

/// Removes trailing zeros behind the decimal point.
fn trimmed(number: &str) -> String {
    if number.contains('e') || !number.contains('.') {
        return number.to_owned();
    }
    let number = number.trim_end_matches('0');
    number.trim_end_matches('.').to_owned()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    /// Aligns a label: the first tick's label begins at the axis.
    fn at(x: f64, begin: f64) -> Self {
        if x <= begin {
            Self::Start
        } else {
            Self::Middle
        }
    }

    /// Centres a label, unless it would exceed the plot.
    fn within(x: f64, label: &str) -> Self {
        if x + width(label) / 2.0 > WIDTH {
            Self::End
        } else {
            Self::Middle
        }
    }
}

fn text(x: f64, y: f64, anchor: Anchor, text: &str, class: &str) -> Markup {
    let anchor = match anchor {
        Anchor::Start => None,
        Anchor::Middle => Some("middle"),
        Anchor::End => Some("end"),
    };
    html! {
        @if !text.is_empty() {
            text x=(px(x)) y=(px(y)) text-anchor=[anchor] class=(class) { (text) }
        }
    }
}

/// Estimates the width of a text, rather too large than too small, because fonts differ.
fn width(text: &str) -> f64 {
    let letter = |letter: char| match letter {
        'i' | 'l' | 'j' | '.' | ',' | ':' | ' ' | '\'' | '|' => 0.4,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '&' => 1.05,
        'A'..='Z' | '+' | '<' | '>' | '=' | '−' | 'µ' => 0.8,
        letter if letter.is_ascii() => 0.66,
        _ => 1.1,
    };
    text.chars().map(letter).sum::<f64>() * FONT
}

/// Truncates a text to a width.
fn fit(text: &str, room: f64) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut remaining = String::new();
    for letter in text.chars() {
        remaining.push(letter);
        if width(&remaining) + FONT * 1.1 > room {
            remaining.pop();
            break;
        }
    }
    remaining + "…"
}

/// Formats a coordinate with one decimal, as exact as a screen.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

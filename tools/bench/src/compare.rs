//! Compares two reports and lists the changes that exceed the noise.
//!
//! Two medians differ if the difference exceeds both [`NOISE`] times the pooled median absolute
//! deviation of their samples ([`pooled_mad`]) and [`MIN_CHANGE`] of the old median.

use crate::report::figure::{deviation, percent, quantity};
use crate::results::{Better, Metric, Report};
use crate::statistics::{Summary, pooled_mad, summary};
use std::collections::BTreeSet;
use std::fmt;

/// A difference of up to this many pooled deviations counts as noise.
pub const NOISE: f64 = 3.0;

/// With fewer samples than this, the deviation is often small by chance. The rule above wrongly
/// reports a change between two sets of normally distributed samples in one of 5 cases with 3
/// samples each, one of 13 with 5 samples, and one of 150 with 10 samples (simulated, standard
/// deviation 5 %).
const FEW_SAMPLES: usize = 5;

/// The smallest reported difference, as a share of the old median.
pub const MIN_CHANGE: f64 = 0.03;

/// The result of comparing two reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Reasons why the two reports are less comparable: another machine, kernel, version or
    /// setting.
    pub warnings: Vec<String>,
    /// Changes beyond the noise, in the order of the new report.
    pub changes: Vec<Change>,
    /// Number of figures without a change beyond the noise.
    pub unchanged: usize,
    /// Number of `changes` with fewer than five samples in one of the reports: too few to tell
    /// noise from change reliably.
    pub few: usize,
    /// Changes of figures with a single sample in both reports, for which the noise is unknown.
    pub unjudged: Vec<Change>,
    /// Contestants and metrics that only the old report has.
    pub only_old: Vec<String>,
    /// Contestants and metrics that only the new report has.
    pub only_new: Vec<String>,
}

/// A figure that both reports have.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The metric.
    pub metric: Metric,
    /// The contestant's title.
    pub contestant: String,
    /// Summary of the old samples.
    pub old: Summary,
    /// Summary of the new samples.
    pub new: Summary,
}

impl Change {
    /// Returns true if the new median is better than the old one.
    pub fn is_better(&self) -> bool {
        match self.metric.better {
            Better::Higher => self.new.median > self.old.median,
            Better::Lower => self.new.median < self.old.median,
        }
    }

    /// Returns the difference as a share of the old median; infinite if the old median is zero.
    pub fn share(&self) -> f64 {
        (self.new.median - self.old.median) / self.old.median.abs()
    }

    /// Returns true if the change exceeds the noise, or `None` if the noise is unknown.
    fn is_significant(&self) -> Option<bool> {
        let noise = pooled_mad(&self.old, &self.new)?;
        let difference = (self.new.median - self.old.median).abs();
        let least = MIN_CHANGE * self.old.median.abs();
        Some(difference > NOISE * noise && difference > least)
    }
}

impl Comparison {
    /// Returns true if any figure got worse beyond the noise.
    pub fn is_worse(&self) -> bool {
        self.changes.iter().any(|change| !change.is_better())
    }
}

/// Compares an old report with a new one.
pub fn compare(old: &Report, new: &Report) -> Comparison {
    let mut comparison = Comparison {
        warnings: warnings(old, new),
        changes: Vec::new(),
        unchanged: 0,
        few: 0,
        unjudged: Vec::new(),
        only_old: only_in(old, new),
        only_new: only_in(new, old),
    };
    for series in &new.series {
        let Some(now) = summary(&series.samples) else {
            continue;
        };
        let Some(before) = old.summary(&series.contestant, &series.metric) else {
            continue;
        };
        let Some(metric) = metric(new, &series.metric) else {
            continue;
        };
        // `warnings` names metrics whose unit changed; their figures cannot be compared.
        if metric_differs(old, metric) {
            continue;
        }
        let change = Change {
            metric: metric.clone(),
            contestant: title(new, &series.contestant).to_owned(),
            old: before,
            new: now,
        };
        match change.is_significant() {
            Some(true) => {
                comparison.few += usize::from(change.old.count.min(change.new.count) < FEW_SAMPLES);
                comparison.changes.push(change);
            }
            Some(false) => comparison.unchanged += 1,
            None => comparison.unjudged.push(change),
        }
    }
    comparison
}

fn metric<'a>(report: &'a Report, key: &str) -> Option<&'a Metric> {
    report.metrics.iter().find(|metric| metric.key == key)
}

fn title<'a>(report: &'a Report, id: &'a str) -> &'a str {
    let entry = report.contestants.iter().find(|entry| entry.id == id);
    entry.map_or(id, |entry| &entry.title)
}

fn metric_differs(old: &Report, metric: &Metric) -> bool {
    let before = self::metric(old, &metric.key);
    before.is_none_or(|before| before.unit != metric.unit || before.better != metric.better)
}

fn warnings(old: &Report, new: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut differ = |what: &str, old: &str, new: &str| {
        if old != new {
            warnings.push(format!("{what} differs: {old} before, {new} now"));
        }
    };
    let (before, now) = (&old.machine, &new.machine);
    differ("the processor", &before.processor, &now.processor);
    let number = |number: &dyn fmt::Display| number.to_string();
    differ(
        "the number of cores",
        &number(&before.cores),
        &number(&now.cores),
    );
    differ(
        "the memory in bytes",
        &number(&before.memory),
        &number(&now.memory),
    );
    differ("the kernel", &before.kernel, &now.kernel);
    differ(
        "TCP's congestion control",
        &before.congestion_control,
        &now.congestion_control,
    );
    differ("the system", &before.system, &now.system);
    let (before, now) = (&old.settings, &new.settings);
    differ("the kind of run", &before.kind, &now.kind);
    differ("the link", &before.link, &now.link);
    differ(
        "TCP of iperf3",
        &before.tcp.to_string(),
        &now.tcp.to_string(),
    );
    differ(
        "the number of rounds",
        &number(&before.rounds),
        &number(&now.rounds),
    );
    differ(
        "the length of a measurement in seconds",
        &number(&before.seconds),
        &number(&now.seconds),
    );
    for entry in &new.contestants {
        let before = old.contestants.iter().find(|known| known.id == entry.id);
        if let Some((Some(before), Some(now))) =
            before.map(|before| (&before.version, &entry.version))
        {
            differ(&format!("the version of {}", entry.title), before, now);
        }
    }
    for (name, now) in &new.tools {
        if let Some(before) = old.tools.get(name) {
            differ(&format!("the version of {name}"), before, now);
        }
    }
    for metric in &new.metrics {
        if self::metric(old, &metric.key).is_some() && metric_differs(old, metric) {
            warnings.push(format!(
                "{} is measured in another unit or direction: not compared",
                metric.key
            ));
        }
    }
    for (report, name) in [(old, "former"), (new, "latter")] {
        if !report.complete {
            warnings.push(format!("the {name} run was stopped before its end"));
        }
    }
    warnings
}

/// Lists what only `one` has samples of: the contestant or metric if `other` has none of its
/// samples, otherwise the single figure.
fn only_in(one: &Report, other: &Report) -> Vec<String> {
    let there = |report: &Report, has: &dyn Fn(&str, &str) -> bool| {
        let mut series = report.series.iter();
        series.any(|series| !series.samples.is_empty() && has(&series.contestant, &series.metric))
    };
    let mut reported = Vec::new();
    let mut seen = BTreeSet::new();
    for series in one
        .series
        .iter()
        .filter(|series| !series.samples.is_empty())
    {
        let (contestant, metric) = (series.contestant.as_str(), series.metric.as_str());
        let what = if !there(other, &|id, _| id == contestant) {
            format!("contestant {}", title(one, contestant))
        } else if !there(other, &|_, key| key == metric) {
            format!("metric {metric}")
        } else if other.samples(contestant, metric).is_empty() {
            format!("{metric} of {}", title(one, contestant))
        } else {
            continue;
        };
        if seen.insert(what.clone()) {
            reported.push(what);
        }
    }
    reported
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for warning in &self.warnings {
            writeln!(f, "warning: {}", plain(warning))?;
        }
        for better in [false, true] {
            let mut changes = self.changes.iter();
            let changes = changes
                .by_ref()
                .filter(|change| change.is_better() == better);
            for change in changes {
                let word = if better { "better" } else { "worse" };
                writeln!(f, "{word}: {change}")?;
            }
        }
        for change in &self.unjudged {
            writeln!(f, "not judged: {change}")?;
        }
        for (what, when) in [(&self.only_old, "before"), (&self.only_new, "now")] {
            for what in what {
                writeln!(f, "only {when}: {}", plain(what))?;
            }
        }
        let better = self.changes.iter().filter(|change| change.is_better());
        let better = better.count();
        writeln!(
            f,
            "{better} better, {} worse, {} within the noise, {} measured once in both and not judged",
            self.changes.len() - better,
            self.unchanged,
            self.unjudged.len()
        )?;
        if self.few > 0 {
            writeln!(
                f,
                "{} of these changes rest on fewer than {FEW_SAMPLES} samples: with 3, about one figure in \
                 five seems to change by chance; run it again, or with --rounds 10",
                self.few
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.metric.unit;
        let shown = |summary: &Summary| match summary.count {
            1 => format!("{} (once)", quantity(summary.median, unit)),
            _ => format!(
                "{} ± {}",
                quantity(summary.median, unit),
                deviation(summary.mad, unit)
            ),
        };
        write!(
            f,
            "{}, {}: {} → {}",
            plain(&self.contestant),
            plain(&self.metric.title),
            shown(&self.old),
            shown(&self.new)
        )?;
        match self.share() {
            share if share.is_finite() => write!(f, " ({})", percent(share))?,
            _ => write!(f, " (from zero)")?,
        }
        if pooled_mad(&self.old, &self.new) == Some(0.0) {
            f.write_str(", no spread in either")?;
        }
        Ok(())
    }
}

/// Replaces control characters, which a terminal would interpret, with spaces.
fn plain(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().map(plain).collect()
}

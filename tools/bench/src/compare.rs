//! What changed between two reports, beyond the noise.
//!
//! Two medians count as different when they differ by more than [`NOISE`] times the
//! pooled median absolute deviation of their samples
//! ([`pooled_mad`]) and by more than [`LEAST`] of the former.

use crate::report::figure::{deviation, percent, quantity};
use crate::results::{Better, Metric, Report};
use crate::statistics::{Summary, pooled_mad, summary};
use std::collections::BTreeSet;
use std::fmt;

/// How many pooled deviations are noise.
pub const NOISE: f64 = 3.0;

/// With fewer samples than this a deviation is often small by chance. Of two sets of
/// normally distributed samples, with a deviation worth speaking of, this rule takes one in
/// five for different when they have 3 samples each, one in thirteen when they have 5, and
/// one in a hundred and fifty when they have 10 (simulated, with a standard deviation of
/// 5 %).
const FEW: usize = 5;

/// The least difference worth telling, as a share of the former median.
pub const LEAST: f64 = 0.03;

/// Two reports side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// What makes the two less comparable: another machine, kernel, version, setting.
    pub warnings: Vec<String>,
    /// What changed beyond the noise, in the order of the new report.
    pub changes: Vec<Change>,
    /// How many figures did not.
    pub unchanged: usize,
    /// How many of those that changed had fewer than five samples in one of the reports:
    /// too few to tell noise from change reliably.
    pub few: usize,
    /// What was measured once in both, so that nothing is known of the noise.
    pub unjudged: Vec<Change>,
    /// What only the former report has.
    pub only_old: Vec<String>,
    /// What only the latter has.
    pub only_new: Vec<String>,
}

/// A figure in both reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// What was measured.
    pub metric: Metric,
    /// Of whom: the contestant's title.
    pub contestant: String,
    /// Formerly.
    pub old: Summary,
    /// Now.
    pub new: Summary,
}

impl Change {
    /// Whether the new median is on the good side of the old one.
    pub fn is_better(&self) -> bool {
        match self.metric.better {
            Better::Higher => self.new.median > self.old.median,
            Better::Lower => self.new.median < self.old.median,
        }
    }

    /// The difference as a share of the former median; infinite from zero.
    pub fn share(&self) -> f64 {
        (self.new.median - self.old.median) / self.old.median.abs()
    }

    /// Whether it is beyond the noise; `None` when nothing is known of the noise.
    fn is_real(&self) -> Option<bool> {
        let noise = pooled_mad(&self.old, &self.new)?;
        let difference = (self.new.median - self.old.median).abs();
        let least = LEAST * self.old.median.abs();
        Some(difference > NOISE * noise && difference > least)
    }
}

impl Comparison {
    /// Whether anything got worse beyond the noise.
    pub fn is_worse(&self) -> bool {
        self.changes.iter().any(|change| !change.is_better())
    }
}

/// Compares two reports, the former first.
pub fn compare(old: &Report, new: &Report) -> Comparison {
    let mut comparison = Comparison {
        warnings: warnings(old, new),
        changes: Vec::new(),
        unchanged: 0,
        few: 0,
        unjudged: Vec::new(),
        only_old: only(old, new),
        only_new: only(new, old),
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
        // What has another unit was warned of, and cannot be compared.
        if metric_differs(old, metric) {
            continue;
        }
        let change = Change {
            metric: metric.clone(),
            contestant: title(new, &series.contestant).to_owned(),
            old: before,
            new: now,
        };
        match change.is_real() {
            Some(true) => {
                comparison.few += usize::from(change.old.count.min(change.new.count) < FEW);
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

/// What one report has samples of and the other has not: whole contestants and metrics
/// where all of them is missing, single figures otherwise.
fn only(one: &Report, other: &Report) -> Vec<String> {
    let there = |report: &Report, has: &dyn Fn(&str, &str) -> bool| {
        let mut series = report.series.iter();
        series.any(|series| !series.samples.is_empty() && has(&series.contestant, &series.metric))
    };
    let mut told = Vec::new();
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
            told.push(what);
        }
    }
    told
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
                "{} of these changes rest on fewer than {FEW} samples: with 3, about one figure in \
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
        let told = |summary: &Summary| match summary.count {
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
            told(&self.old),
            told(&self.new)
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

/// Without characters that a terminal would obey.
fn plain(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().map(plain).collect()
}

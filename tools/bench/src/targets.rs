//! Taupe's goals for speed, and whether a run reaches them.
//!
//! These are the project's published goals, defined by the metrics that measure them. Most are
//! ratios to other programs in the same run, because absolute speeds of one machine say little
//! about another. Neither the product nor its tests depend on them.

mod findings;
mod goals;

pub use findings::{Finding, Findings, Verdict};
pub use goals::all;

use crate::report::figure::{NONE, digits, quantity};
use crate::results::{Report, Unit};

/// A goal for one figure.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Title of the goal: `TCP up, 1 stream`.
    pub title: &'static str,
    /// Id of the contestant, or of the handshake in the table of handshakes.
    pub of: &'static str,
    /// The figure.
    pub figure: TargetFigure,
    /// The figure it is compared with.
    pub beside: Reference,
    /// The bound on the figure, or on its ratio to `beside`.
    pub bound: Bound,
    /// Unit of the bound.
    pub unit: Unit,
    /// Metrics that are 1 if something other than the tunnel was the limit.
    pub limits: &'static [&'static str],
}

/// A figure, computed from medians of metrics that are given by their keys.
#[derive(Debug, Clone, Copy)]
pub enum TargetFigure {
    /// The median of a metric.
    Of(&'static str),
    /// The difference between the second metric and the first, divided by the number.
    Each(&'static str, &'static str, f64),
    /// The median of a metric times the number.
    Times(&'static str, f64),
    /// The reciprocal of a metric in seconds.
    Rate(&'static str),
    /// A figure that no report contains; the text says where it is found.
    Elsewhere(&'static str),
}

/// The figure that a goal is compared with.
#[derive(Debug, Clone, Copy)]
pub enum Reference {
    /// None: the bound is absolute.
    Nothing,
    /// The same figure of another contestant.
    Contestant(&'static str),
    /// The least of the same figures of these contestants.
    Least(&'static [&'static str]),
    /// Another figure of the same contestant.
    Own(TargetFigure),
}

/// The bound of a goal.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// Reached by this value or more.
    AtLeast(f64),
    /// Reached by this value or less.
    AtMost(f64),
}

/// Compares a report with all goals.
pub fn judge(report: &Report) -> Findings {
    Findings(all().iter().map(|target| target.judge(report)).collect())
}

impl Target {
    fn judge(&self, report: &Report) -> Finding {
        let own = self.figure.read(report, self.of);
        let beside = self.beside(report);
        let value = match (&own, &beside) {
            (Ok((own, _)), None) => Ok(*own),
            (Ok((own, _)), Some((_, Ok((other, _))))) if *other > 0.0 => Ok(own / other),
            (Ok(_), Some((_, Ok(_)))) => Err("nothing to divide by".to_owned()),
            (Err(why), _) | (_, Some((_, Err(why)))) => Err(why.clone()),
        };
        let verdict = match &value {
            Ok(value) if self.bound.holds(*value) => Verdict::Met,
            Ok(_) => Verdict::Missed(self.other_limit(report)),
            Err(why) => Verdict::NotMeasured(why.clone()),
        };
        let shown = |figure: &Read| {
            figure
                .as_ref()
                .map_or(NONE.to_owned(), |(value, unit)| quantity(*value, *unit))
        };
        Finding {
            title: self.title,
            measured: shown(&own),
            reference: beside.as_ref().map(|(_, figure)| shown(figure)),
            beside: beside.map(|(name, _)| name).unwrap_or_default(),
            value: value.ok(),
            bound: self.bound.text(self.unit),
            verdict,
        }
    }

    /// Returns the figure it is compared with, and its description.
    fn beside(&self, report: &Report) -> Option<(String, Read)> {
        let of = |id: &str| (id.to_owned(), self.figure.read(report, id));
        match self.beside {
            Reference::Nothing => None,
            Reference::Contestant(id) => Some(of(id)),
            Reference::Own(figure) => {
                Some(("one peer only".to_owned(), figure.read(report, self.of)))
            }
            Reference::Least(ids) => {
                let size =
                    |found: &(_, Read)| found.1.as_ref().map_or(f64::INFINITY, |found| found.0);
                let all = ids.iter().map(|id| of(id));
                all.min_by(|one, other| size(one).total_cmp(&size(other)))
            }
        }
    }

    /// Returns what limited most of the samples in place of the tunnel, if anything.
    fn other_limit(&self, report: &Report) -> Option<String> {
        let limited = |key: &&&str| {
            let found = report.summary(self.of, key);
            found.is_some_and(|found| found.median > 0.5)
        };
        let key = self.limits.iter().find(limited)?;
        let who = key.rsplit('/').next().unwrap_or_default();
        Some(format!("the {who} is the limit"))
    }
}

/// A figure with its unit, or a text about what is missing.
type Read = Result<(f64, Unit), String>;

impl TargetFigure {
    /// Reads the figure of a contestant.
    fn read(self, report: &Report, of: &str) -> Read {
        let median = |key: &str| {
            let found = report.summary(of, key).map(|found| found.median);
            let unit = report.metrics.iter().find(|metric| metric.key == key);
            let found = found.zip(unit.map(|metric| metric.unit));
            found.ok_or_else(|| format!("no {key} of {of}"))
        };
        match self {
            Self::Of(key) => median(key),
            Self::Times(key, factor) => {
                let (value, unit) = median(key)?;
                // The figure is per full batch, no longer per gigabyte.
                let unit = match unit {
                    Unit::PerGigabyte => Unit::Count,
                    other => other,
                };
                Ok((value * factor, unit))
            }
            Self::Each(from, to, count) => {
                let ((from, _), (to, unit)) = (median(from)?, median(to)?);
                Ok(((to - from) / count, unit))
            }
            Self::Rate(key) => match median(key)? {
                (time, Unit::Seconds) if time > 0.0 => Ok((time.recip(), Unit::PerSecond)),
                (other, _) => Err(format!("{key} is no time: {other}")),
            },
            Self::Elsewhere(place) => Err(format!("see {place}")),
        }
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    fn text(self, unit: Unit) -> String {
        let (sign, bound) = match self {
            Self::AtLeast(bound) => ("≥", bound),
            Self::AtMost(bound) => ("≤", bound),
        };
        match unit {
            Unit::Count => format!("{sign} {}", digits(bound)),
            unit => format!("{sign} {}", quantity(bound, unit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Better, Metric};

    fn report(samples: &[(&str, &str, Unit, f64)]) -> Report {
        let mut report = Report::default();
        for (of, key, unit, value) in samples {
            report.record(of, &Metric::new(*key, *key, *unit, Better::Lower), *value);
        }
        report
    }

    fn found(report: &Report, title: &str, beside: &str) -> Finding {
        let all = judge(report).0.into_iter();
        let mut found = all.filter(|one| one.title == title && one.beside.starts_with(beside));
        found.next().expect("such a goal")
    }

    #[test]
    fn ratios_are_compared_with_bounds() {
        const BIT: Unit = Unit::BitsPerSecond;
        let of = |own: f64| {
            report(&[
                ("taupe", "tcp/1/up", BIT, own),
                ("wireguard-go", "tcp/1/up", BIT, 2e9),
            ])
        };
        let title = "TCP up, 1 stream";
        let just = found(&of(5e9), title, "wireguard-go");
        assert_eq!((just.value, just.verdict), (Some(2.5), Verdict::Met));
        let less = found(&of(4.9e9), title, "wireguard-go");
        assert_eq!(less.verdict, Verdict::Missed(None));
        let no_reference = found(&of(5e9), title, "direct");
        let reason = "no tcp/1/up of direct".to_owned();
        assert_eq!(no_reference.verdict, Verdict::NotMeasured(reason));
    }

    #[test]
    fn the_lowest_of_several_references_counts() {
        const S: Unit = Unit::Seconds;
        let report = report(&[
            ("taupe", "qperf/tcp_lat", S, 45e-6),
            ("openvpn-tls-aes", "qperf/tcp_lat", S, 44e-6),
            ("openvpn-static-aes", "qperf/tcp_lat", S, 60e-6),
        ]);
        let found = found(&report, "qperf tcp_lat, idle", "openvpn");
        assert_eq!(found.beside, "openvpn-tls-aes");
        assert_eq!(found.verdict, Verdict::Missed(None));
    }

    #[test]
    fn derived_figures_are_computed() {
        let report = report(&[
            ("taupe", "peers/1/resident", Unit::Bytes, 5e6),
            ("taupe", "peers/100000/resident", Unit::Bytes, 125e6),
            ("taupe", "peers/100000/add", Unit::Seconds, 21e-6),
            ("x25519", "handshake-pq/server", Unit::Seconds, 80e-6),
            (
                "taupe",
                "cost/programs/syscalls/up",
                Unit::PerGigabyte,
                70e3,
            ),
        ]);
        let each = found(&report, "100,000 peers: memory of each", "");
        assert_eq!(
            (&*each.measured, each.verdict),
            ("1.20 kB", Verdict::Missed(None))
        );
        let time = found(&report, "100,000 peers: time to configure", "");
        assert_eq!(
            (&*time.measured, time.verdict),
            ("2.10 s", Verdict::Missed(None))
        );
        let rate = found(&report, "handshakes answered by a core", "");
        assert!(
            rate.value
                .is_some_and(|value| (value - 12_500.0).abs() < 1e-6),
            "{rate:?}"
        );
        assert_eq!(rate.verdict, Verdict::Met);
        // 70,000 calls for 16,244 batches.
        let calls = found(&report, "system calls per full batch, one direction", "");
        assert!(
            calls
                .value
                .is_some_and(|value| (value - 4.309).abs() < 0.001),
            "{calls:?}"
        );
        assert_eq!(calls.verdict, Verdict::Missed(None));
    }

    #[test]
    fn a_miss_names_a_limit_other_than_the_tunnel() {
        let report = report(&[
            ("taupe", "udp/64/rate", Unit::PacketsPerSecond, 150e3),
            ("taupe", "udp/64/limit/sender", Unit::Share, 1.0),
            ("taupe", "udp/64/limit/receiver", Unit::Share, 0.0),
            ("wireguard-go", "udp/64/rate", Unit::PacketsPerSecond, 100e3),
        ]);
        let found = found(&report, "UDP of 64 B, sent one by one", "");
        let reason = "the sender is the limit".to_owned();
        assert_eq!(found.verdict, Verdict::Missed(Some(reason)));
    }

    #[test]
    fn an_empty_report_meets_no_goal() {
        let found = judge(&Report::default());
        assert!(!found.any_missed());
        let text = found.to_string();
        assert!(
            text.ends_with(&format!("0 met, 0 missed, {} not measured\n", all().len())),
            "{text}"
        );
        assert!(text.contains("see make bench-micro"), "{text}");
    }
}

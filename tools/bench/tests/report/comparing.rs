//! Comparison of two reports.

use crate::fixture;
use taupe_bench::compare::{Comparison, compare};
use taupe_bench::results::{Better, Metric, Report, Unit};

/// Compares two reports with one figure each.
fn two(better: Better, old: &[f64], new: &[f64]) -> Comparison {
    let metric = Metric::new("tcp/1/up", "TCP up", Unit::BitsPerSecond, better);
    let with = |samples: &[f64]| {
        let mut report = fixture::empty();
        report.complete = true;
        samples
            .iter()
            .for_each(|sample| report.record("taupe", &metric, *sample));
        report
    };
    compare(&with(old), &with(new))
}

#[test]
fn the_same_report_has_not_changed() {
    let report = fixture::full();
    let found = compare(&report, &report);
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    assert!(found.changes.is_empty() && found.only_old.is_empty() && found.only_new.is_empty());
    assert!(!found.is_worse() && found.unchanged > 100, "{found}");
    // The fixture has a single sample of this figure.
    assert_eq!(found.unjudged.len(), 1, "{found}");
}

#[test]
fn direction_depends_on_the_metric() {
    let (low, high) = (&[99.0, 100.0, 101.0], &[119.0, 120.0, 121.0]);
    for (better, old, new, worse) in [
        (Better::Higher, low, high, false),
        (Better::Higher, high, low, true),
        (Better::Lower, low, high, true),
        (Better::Lower, high, low, false),
    ] {
        let found = two(better, old, new);
        assert_eq!(found.changes.len(), 1);
        assert_eq!(found.is_worse(), worse, "{found}");
        let word = if worse { "worse: " } else { "better: " };
        assert!(found.to_string().contains(word), "{found}");
    }
    let reported = two(Better::Higher, low, high).to_string();
    assert!(
        reported.contains("100 bit/s ± 1.0 bit/s → 120 bit/s ± 1.0 bit/s (+20.0 %)"),
        "{reported}"
    );
}

#[test]
fn noise_is_three_pooled_deviations_and_three_percent() {
    let around = |middle: f64, spread: f64| [middle - spread, middle, middle + spread];
    for (new, spread, changed) in [
        // Deviations of 2 pool to 2, so the bound is 6.
        (105.9, 2.0, false),
        (106.1, 2.0, true),
        // With a tiny deviation the bound is 3 %.
        (102.9, 0.1, false),
        (103.1, 0.1, true),
        (96.9, 0.1, true),
    ] {
        let found = two(Better::Higher, &around(100.0, spread), &around(new, spread));
        assert_eq!(
            !found.changes.is_empty(),
            changed,
            "{new} ± {spread}: {found}"
        );
        assert_eq!(found.unchanged, usize::from(!changed));
    }
}

#[test]
fn a_missing_spread_is_mentioned() {
    let found = two(Better::Lower, &[0.0; 3], &[4.0; 3]);
    assert!(found.is_worse());
    let reported = found.to_string();
    assert!(
        reported.contains("from zero") && reported.contains("no spread"),
        "{reported}"
    );
    assert_eq!(two(Better::Lower, &[0.0; 3], &[0.0; 3]).unchanged, 1);
}

#[test]
fn single_samples_are_not_judged() {
    let found = two(Better::Higher, &[100.0], &[10.0]);
    assert!(found.changes.is_empty() && !found.is_worse());
    assert_eq!(found.unjudged.len(), 1);
    assert!(found.to_string().contains("not judged: "), "{found}");
    // The deviation of one side is enough.
    assert!(two(Better::Higher, &[100.0], &[10.0, 10.5, 11.0]).is_worse());
}

#[test]
fn metrics_of_one_report_only_are_named() {
    let old = fixture::full();
    let mut new = old.clone();
    new.series
        .retain(|series| series.contestant != "gotatun" && series.metric != "startup");
    new.series
        .retain(|series| (&*series.contestant, &*series.metric) != ("taupe", "tcp/1/up"));
    let found = compare(&old, &new);
    assert!(found.only_new.is_empty());
    let only = found.only_old.join("\n");
    for part in ["contestant GotaTun", "metric startup", "tcp/1/up of Taupe"] {
        assert!(only.contains(part), "{part} in {only}");
    }
    // One entry for each contestant or metric that the old report lacks.
    assert_eq!(found.only_old.len(), 3, "{only}");
    assert_eq!(compare(&new, &old).only_new, found.only_old);
}

#[test]
fn differences_between_runs_are_warned_of() {
    type Change = fn(&mut Report);
    let changes: [(&str, Change); 11] = [
        ("processor", |report| {
            report.machine.processor = "another".to_owned()
        }),
        ("cores", |report| report.machine.cores = 64),
        ("kernel", |report| report.machine.kernel = "7.0".to_owned()),
        ("rounds", |report| report.settings.rounds = 1),
        ("length", |report| report.settings.seconds = 1.5),
        ("link", |report| report.settings.link = "lte".to_owned()),
        ("TCP", |report| report.settings.tcp.ecn = true),
        ("version of Taupe", |report| {
            report.contestants[1].version = Some("9".to_owned())
        }),
        ("version of iperf3", |report| {
            report.tools.insert("iperf3".to_owned(), "9".to_owned());
        }),
        ("another unit", |report| {
            report.metrics[0].unit = Unit::Bytes
        }),
        ("stopped", |report| report.complete = false),
    ];
    let old = fixture::full();
    for (word, change) in changes {
        let mut new = old.clone();
        change(&mut new);
        let found = compare(&old, &new);
        assert_eq!(found.warnings.len(), 1, "{word}: {:?}", found.warnings);
        assert!(
            found.warnings[0].contains(word),
            "{word}: {:?}",
            found.warnings
        );
    }
}

#[test]
fn changes_from_few_samples_are_marked() {
    let (low, high) = (99.0, 120.0);
    for (count, few) in [(3, 1), (4, 1), (5, 0), (10, 0)] {
        let around = |middle: f64| -> Vec<f64> {
            (0..count).map(|at| middle + f64::from(at) / 10.0).collect()
        };
        let found = two(Better::Higher, &around(low), &around(high));
        assert_eq!(
            (found.changes.len(), found.few),
            (1, few),
            "{count} samples"
        );
        assert_eq!(found.to_string().contains("by chance"), few > 0, "{found}");
    }
}

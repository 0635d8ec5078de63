//! Reading reports: errors name the file and position, and no file causes a panic.

use crate::fixture;
use proptest::prelude::*;
use std::path::PathBuf;
use taupe_bench::report;
use taupe_bench::results::Report;

/// A file of this test, removed when it is dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, content: &[u8]) -> Self {
        let name = format!("taupe-report-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).expect("write");
        Self(path)
    }

    fn read(&self) -> Result<Report, String> {
        Report::read(&self.0).map_err(|error| error.to_string())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn json(report: &Report) -> String {
    serde_json::to_string_pretty(report).expect("JSON")
}

#[test]
fn reports_round_trip() {
    for (name, report) in [("full", fixture::full()), ("nasty", fixture::nasty())] {
        let file = File::new(name, json(&report).as_bytes());
        // The reports are too long for `assert_eq!`.
        assert!(file.read().expect("a report") == report, "{name}");
    }
}

#[test]
fn errors_name_file_position_and_cause() {
    let text = json(&fixture::empty()).replace("\"rounds\": 5", "\"rounds\": \"five\"");
    let line = text
        .lines()
        .position(|line| line.contains("five"))
        .expect("the line")
        + 1;
    let file = File::new("word", text.as_bytes());
    let error = file.read().expect_err("an error");
    let path = file.0.display().to_string();
    for part in [&*path, &format!("line {line}, "), "\"five\"", "u32"] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_newer_format_is_refused_with_a_remedy() {
    // A newer format may differ in everything else.
    let file = File::new("newer", br#"{"format": 2, "series": "elsewhere"}"#);
    let error = file.read().expect_err("an error");
    assert!(
        error.contains("format 2") && error.contains("newer"),
        "{error}"
    );
}

#[test]
fn missing_and_binary_files_are_named() {
    let missing = PathBuf::from("/nonexistent/report.json");
    let error = Report::read(&missing).expect_err("an error").to_string();
    assert!(error.contains("/nonexistent/report.json"), "{error}");
    let file = File::new("binary", b"\xff\xfe\x00");
    let error = file.read().expect_err("an error");
    assert!(error.contains("binary"), "{error}");
}

/// Every prefix of a report is an error. The step divides no length in it, so that cuts fall on all
/// kinds of positions.
#[test]
fn a_truncated_report_is_an_error() {
    let mut report = fixture::full();
    report.series.truncate(3);
    report.distributions.truncate(1);
    report
        .distributions
        .iter_mut()
        .for_each(|one| one.quantiles.truncate(3));
    let text = json(&report);
    for end in (0..text.len())
        .step_by(7)
        .filter(|end| text.is_char_boundary(*end))
    {
        let file = File::new("truncated", &text.as_bytes()[..end]);
        assert!(file.read().is_err(), "{end} of {} bytes", text.len());
    }
}

/// Generates any JSON value, with the words of reports among its keys.
fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let word = prop_oneof![
        Just("tcp/4/up".to_owned()),
        Just("direct".to_owned()),
        Just("peers/99999999999999999999/x".to_owned()),
        "\\PC{0,8}",
    ];
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<f64>().prop_map(|number| serde_json::json!(number)),
        any::<i64>().prop_map(|number| serde_json::json!(number)),
        word.prop_map(serde_json::Value::String),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::Array),
            proptest::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Returns the number of positions in a value, itself included.
fn places(value: &serde_json::Value) -> usize {
    1 + match value {
        serde_json::Value::Array(items) => items.iter().map(places).sum(),
        serde_json::Value::Object(map) => map.values().map(places).sum(),
        _ => 0,
    }
}

/// Replaces the value at a position, counted from the top.
fn replace(value: &mut serde_json::Value, at: &mut usize, new: &serde_json::Value) {
    if *at == 0 {
        *value = new.clone();
        *at = usize::MAX;
        return;
    }
    *at -= 1;
    match value {
        serde_json::Value::Array(items) => {
            for item in items {
                if *at < usize::MAX / 2 {
                    replace(item, at, new);
                }
            }
        }
        serde_json::Value::Object(map) => {
            for item in map.values_mut() {
                if *at < usize::MAX / 2 {
                    replace(item, at, new);
                }
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A report with arbitrary changes either is an error or can be rendered.
    #[test]
    fn no_report_makes_a_page_panic(
        changes in proptest::collection::vec((any::<usize>(), any_json()), 1..6)
    ) {
        let mut report = fixture::full();
        report.series.retain(|series| series.contestant.len() < 8);
        report.distributions.truncate(2);
        report.distributions.iter_mut().for_each(|one| one.quantiles.truncate(8));
        let mut value = serde_json::to_value(&report).expect("JSON");
        for (at, new) in changes {
            let mut at = at % places(&value);
            replace(&mut value, &mut at, &new);
        }
        let file = File::new("changed", value.to_string().as_bytes());
        if let Ok(changed) = file.read() {
            report::html(&changed);
            report::text(&changed);
            report::markdown(&changed);
            let _ = taupe_bench::compare::compare(&report, &changed).to_string();
            let _ = taupe_bench::compare::compare(&changed, &report).to_string();
        }
    }
}

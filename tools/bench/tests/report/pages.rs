//! Pages rendered from reports.

use crate::fixture;
use taupe_bench::report;
use taupe_bench::results::{Better, Metric, Report, Unit};

fn all() -> [(&'static str, Report); 3] {
    [
        ("full", fixture::full()),
        ("empty", fixture::empty()),
        ("nasty", fixture::nasty()),
    ]
}

#[test]
fn a_terminal_has_a_hundred_columns() {
    for (name, report) in all() {
        for line in report::text(&report).lines() {
            let width = line.chars().count();
            assert!(width <= 100, "{name}: {width} columns: {line}");
            assert!(!line.contains(char::is_control), "{name}: {line:?}");
        }
    }
}

#[test]
fn the_terminal_shows_medians_spread_best_and_ratios() {
    let mut report = fixture::full();
    report.metrics.retain(|metric| metric.key == "tcp/1/up");
    for (id, samples) in [
        ("direct", [20e9, 22e9, 24e9]),
        ("wireguard-go", [5e9, 5.5e9, 7e9]),
        ("taupe", [10e9, 11e9, 12e9]),
    ] {
        for series in &mut report.series {
            if (&*series.contestant, &*series.metric) == (id, "tcp/1/up") {
                series.samples = samples.to_vec();
            }
        }
    }
    let text = report::text(&report);
    let line = text
        .lines()
        .find(|line| line.starts_with("Taupe "))
        .expect("a line");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words, ["Taupe", "11.0", "9.1%", "12.0", "0.500", "2.00"]);
}

#[test]
fn workers_have_a_row_for_each_number() {
    let report = fixture::full();
    let markdown = report::markdown(&report);
    let (_, section) = markdown
        .split_once("## Throughput over workers")
        .expect("a section");
    let rows: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .take(2 + 9)
        .collect();
    let head = "|  | workers | TCP up (Gbit/s) | TCP down (Gbit/s) | busy, up (cores) | \
                cost, up (cores per Gbit/s) | reorderings, up |";
    assert_eq!(rows[0], head);
    let begin = |row: &&str| {
        row.split('|')
            .take(3)
            .map(str::trim)
            .collect::<Vec<_>>()
            .join(",")
    };
    let begins: Vec<String> = rows[2..].iter().map(begin).collect();
    let expected = [
        ",no tunnel,–",
        ",Taupe,1",
        ",Taupe,2",
        ",Taupe,4",
        ",Taupe,8",
        ",wireguard-go,1",
        ",wireguard-go,2",
        ",wireguard-go,4",
        ",wireguard-go,8",
    ];
    assert_eq!(begins, expected);
    let html = report::html(&report);
    for part in [
        "Contestants without such a setting have level lines",
        "Over the number of clients",
    ] {
        assert!(html.contains(part), "{part}");
    }
    let text = report::text(&report);
    let lines = text
        .lines()
        .filter(|line| line.starts_with("wireguard-go  "));
    let words = lines.map(|line| line.split_whitespace().nth(1));
    assert_eq!(words.filter(|word| *word == Some("8")).count(), 1, "{text}");
}

#[test]
fn every_page_lists_missing_figures() {
    let report = fixture::full();
    for (name, page) in [
        ("text", report::text(&report)),
        ("html", report::html(&report)),
        ("markdown", report::markdown(&report)),
    ] {
        for part in [
            "WireGuard in the kernel",
            "Operation not supported",
            "unable to connect to server",
            "Made-up Processor 9000",
            "6.1.0-test",
            "2020-01-02T03:04:05Z",
            "428 Mbit/s",
            "share its cores",
        ] {
            // The terminal output has line breaks.
            let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(page.contains(part), "{name} without {part}");
        }
    }
}

#[test]
fn every_page_marks_an_interrupted_run() {
    let mut report = fixture::full();
    for complete in [true, false] {
        report.complete = complete;
        for page in [
            report::text(&report),
            report::html(&report),
            report::markdown(&report),
        ] {
            assert_eq!(page.contains("stopped before its end"), !complete);
        }
    }
}

#[test]
fn no_text_of_a_report_becomes_markup() {
    let report = fixture::nasty();
    let html = report::html(&report);
    assert!(html.contains("&lt;script&gt;"));
    for part in ["<script", "<img", "nobody <b>"] {
        assert!(!html.contains(part), "{part}");
    }
    let markdown = report::markdown(&report);
    for part in ["<script", "<img"] {
        assert!(!markdown.contains(part), "{part}");
    }
}

/// A row with another number of cells than the heading would be misread.
#[test]
fn tables_of_the_documentation_are_even() {
    for (name, report) in all() {
        let page = report::markdown(&report);
        let mut cells = None;
        for line in page.lines() {
            if !line.starts_with('|') {
                cells = None;
                continue;
            }
            let bars = line.replace("\\|", "").matches('|').count();
            assert_eq!(*cells.get_or_insert(bars), bars, "{name}: {line}");
        }
    }
}

#[test]
fn the_page_is_one_file() {
    for (name, report) in all() {
        let html = report::html(&report);
        let text = html.replace("https://example.org/", "");
        for part in ["http://", "https://", "url(", "@import", "src=", "<script"] {
            let escaped = text.replace("src=x", "");
            assert!(!escaped.contains(part), "{name}: {part}");
        }
    }
}

/// A contestant has the same colour in every plot and in the tables.
#[test]
fn plots_cover_what_was_measured() {
    let html = report::html(&fixture::full());
    for title in [
        "TCP, client to server",
        "TCP, server to client",
        "UDP packets per second",
        "Round trips, idle",
        "Round trips, under load",
        "CPU, the whole machine",
        "resident memory",
        "time to add",
        "program start to first answer",
    ] {
        assert!(html.contains(&format!("aria-label=\"{title}\"")), "{title}");
    }
    assert!(!report::html(&fixture::empty()).contains("<svg"));
}

/// Without its unit a figure could be misread by a factor of a thousand.
#[test]
fn units_fit_into_the_terminal() {
    let mut report = fixture::empty();
    let title = "context switches of all of the tunnel's programs on both sides";
    let (unit, better) = (Unit::PerGigabyte, Better::Lower);
    report.record(
        "taupe",
        &Metric::new("cost/x", title, unit, better),
        39_300.0,
    );
    let page = report::text(&report);
    let head = page.lines().find(|line| line.contains("context"));
    let head = head.expect("the head");
    assert!(head.contains("… (thousand/GB)"), "{page}");
    assert!(head.chars().count() <= 100, "{head}");
}

#[test]
fn every_page_has_the_overview() {
    let mut report = fixture::empty();
    for (key, unit, value) in [
        ("tcp/1/up", Unit::BitsPerSecond, 4.82e9),
        ("latency/idle/p50", Unit::Seconds, 126e-6),
        ("cost/cpu/total", Unit::SecondsPerGigabyte, 2.93),
        ("memory/resident", Unit::Bytes, 11.3e6),
    ] {
        let metric = Metric::new(key, key, unit, Better::Lower);
        report.record("taupe", &metric, value);
    }
    let pages = [
        report::text(&report),
        report::html(&report),
        report::markdown(&report),
    ];
    for page in pages {
        let (_, glance) = page.split_once("At a glance").expect("the table");
        for figure in ["4.82", "Gbit/s", "126", "µs", "2.93", "s/GB", "11.3", "MB"] {
            assert!(glance.contains(figure), "{figure} in {glance}");
        }
    }
    assert!(!report::text(&fixture::empty()).contains("At a glance"));
}

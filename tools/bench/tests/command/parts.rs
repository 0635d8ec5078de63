//! Runs in parts: continued, joined, and refused with other options.

use super::{Folder, eventually, interrupt, lab, run};
use rustix::process::Signal;
use std::path::Path;
use std::process::{Command, Output};
use taupe_bench::results::Report;

const ROUNDS: usize = 12;

const RUN: [&str; 8] = [
    "--contestants",
    "direct",
    "--only",
    "startup",
    "--minutes",
    "5",
    "--rounds",
    "12",
];

fn merge(parts: &Path, out: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taupe-lab"));
    command.arg("merge").arg(parts).arg("--out").arg(out);
    command.output().expect("it starts")
}

fn samples(report: &Report) -> usize {
    report.samples("direct", "startup").len()
}

#[test]
fn an_interrupted_part_is_continued() {
    let folder = Folder::new("parts");
    let child = lab(&folder.0, &RUN).spawn().expect("it starts");
    let first = folder.0.join("part-01.json");
    eventually("a first group", || first.exists());
    interrupt(&child, Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let begun = folder.report();
    assert!(
        !begun.complete && (1..ROUNDS).contains(&samples(&begun)),
        "{begun:?}"
    );

    let joined = Folder::new("joined");
    let output = merge(&folder.0, &joined.0);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(samples(&joined.report()), samples(&begun));

    let mut other = RUN;
    other[7] = "13";
    let output = run(&folder.0, &other);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("part of a run with other options"),
        "{errors}"
    );

    let output = run(&folder.0, &RUN);
    assert!(output.status.success(), "{output:?}");
    let report = folder.report();
    assert!(report.complete && report.failures.is_empty(), "{report:?}");
    assert_eq!(samples(&report), ROUNDS);
    assert_eq!(
        report.samples("direct", "startup")[..samples(&begun)],
        *begun.samples("direct", "startup")
    );
    assert!(folder.html().contains("</html>"));

    // Nothing is left to do.
    let output = run(&folder.0, &RUN);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(samples(&folder.report()), ROUNDS);
    assert!(!folder.0.join("part-03.json").exists());

    let output = merge(&folder.0, &joined.0);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(samples(&joined.report()), ROUNDS);
}

#[test]
fn sections_without_parts_are_refused() {
    let folder = Folder::new("whole");
    let output = run(&folder.0, &["--minutes", "5", "--only", "peers,throughput"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("in parts cannot measure peers:"),
        "{errors}"
    );
}

#[test]
fn a_folder_without_parts_is_not_joined() {
    let folder = Folder::new("empty");
    let output = merge(&folder.0, &folder.0);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("has no file part-….json"), "{errors}");
}

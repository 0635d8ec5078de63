//! Compares the records in docs/evidence/dependencies.md with the crates that the programs and the library
//! consist of.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const DOCUMENT: &str = include_str!("../../../docs/evidence/dependencies.md");

/// Crates by name, with the number of lines that contain `unsafe`. Two versions of a crate are one entry.
type Crates = BTreeMap<String, usize>;

/// Runs cargo without network.
fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .args(["--offline", "--locked"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The edges to crates that are linked.
const LINKED: &str = "normal,no-proc-macro";

/// The edges to these and to crates that run while a package is built.
const BUILT: &str = "normal,build";

/// Lists the packages below a package of the workspace, each as its name and version.
fn packages(program: &str, edges: &str) -> Vec<(String, String)> {
    let tree = ["tree", "--package", program, "--target", TARGET];
    let form = ["--prefix", "none", "--format", "{p}", "--edges", edges];
    let mut packages: Vec<(String, String)> = cargo(&[&tree[..], &form[..]].concat())
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(name, rest)| (name.into(), rest.split(' ').next().unwrap().into()))
        .filter(|(name, _): &(String, String)| name.split('-').next() != Some("taupe"))
        .collect();
    packages.sort();
    packages.dedup();
    packages
}

/// Counts the lines that contain the word `unsafe` and are not comments.
fn lines_with_unsafe(folder: &Path) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let counts = fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return lines_with_unsafe(&path);
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            return 0;
        }
        let text = fs::read_to_string(path).unwrap();
        // Most lines do not contain it: the rest is slow.
        let lines = text.lines().filter(|line| line.contains("unsafe"));
        lines
            .filter(|line| !line.trim_start().starts_with("//"))
            .filter(|line| line.split(|c| !is_word(c)).any(|word| word == "unsafe"))
            .count()
    });
    counts.sum()
}

/// Counts each package's lines with `unsafe`.
fn count(packages: &[(String, String)], metadata: &Value) -> Crates {
    let mut crates = Crates::new();
    for (name, version) in packages {
        let mut known = metadata["packages"].as_array().unwrap().iter();
        let package = known.find(|known| known["name"] == **name && known["version"] == **version);
        let manifest = Path::new(package.unwrap()["manifest_path"].as_str().unwrap());
        let folder = manifest.parent().unwrap();
        // One crate has no such folder: its code lies beside the manifest.
        let source = Some(folder.join("src")).filter(|source| source.is_dir());
        *crates.entry(name.clone()).or_default() +=
            lines_with_unsafe(source.as_deref().unwrap_or(folder));
    }
    crates
}

/// Reads the records below a heading of the second level.
fn records(heading: &str) -> Crates {
    let (_, section) = DOCUMENT.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut records = Crates::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let figures = cells[3].split(", ").map(|figure| figure.parse().unwrap());
        let names = cells[1].split(", ").map(|name| name.replace('`', ""));
        records.extend(names.zip(figures));
    }
    records
}

#[test]
fn every_crate_has_a_record() {
    let metadata = cargo(&[
        "metadata",
        "--format-version=1",
        "--filter-platform",
        TARGET,
    ]);
    let metadata = serde_json::from_str(&metadata).unwrap();
    let (mut sections, mut recorded) = (Vec::new(), Vec::new());
    for (heading, program) in [
        ("Linked", "taupe"),
        ("In `taupe-web` only", "taupe-web"),
        ("In libtaupe only", "taupe-ffi"),
    ] {
        let mut crates = packages(program, LINKED);
        crates.retain(|package| !recorded.contains(package));
        recorded.extend(crates.clone());
        sections.push((heading, crates));
    }
    let programs = ["taupe", "taupe-web", "taupe-ffi"];
    let mut built: Vec<_> = programs.map(|it| packages(it, BUILT)).concat();
    built.retain(|package| !recorded.contains(package));
    built.sort();
    built.dedup();
    sections.push(("Run by the build only", built));
    for (heading, packages) in sections {
        let (crates, records) = (count(&packages, &metadata), records(heading));
        for name in crates.keys().chain(records.keys()) {
            let (is, recorded) = (crates.get(name), records.get(name));
            assert_eq!(
                is, recorded,
                "{heading}, {name}: lines with `unsafe`, and its record"
            );
        }
    }
}

#[test]
fn the_front_contains_no_crate_that_the_command_lacks() {
    let linked = packages("taupe", LINKED);
    let front = packages("taupe-dbus", LINKED);
    assert!(front.iter().any(|(name, _)| name == "zbus"), "{front:?}");
    for package in front {
        assert!(linked.contains(&package), "{package:?} has no record");
    }
}

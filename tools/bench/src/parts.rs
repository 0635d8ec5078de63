//! Parts of a run. If a machine is available for less time than a run takes, the run is measured in
//! several parts, each with a file of its own.
//!
//! The unit is a group of steps: one measurement of all contestants in turn. A part consists of
//! complete groups, so contestants are compared within one part. The next part continues with the
//! first group that no file contains, and [`merge`] joins the files into one report.

mod counted;

pub use counted::CountedRoundTrips;

use crate::options::Options;
use crate::results::{self, Entry, Machine, Report};
use crate::tables;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};

/// Version of the files' format.
const FORMAT: u32 = 1;

/// Largest number of files of one run.
const MAX_PARTS: usize = 1000;

/// A part of a run, as stored in `part-01.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    format: u32,
    /// The options of the run, except those that may differ between parts.
    pub options: Options,
    /// Number of groups of the run.
    pub groups: usize,
    /// The names of the measured groups, by their number in the run.
    pub done: BTreeMap<usize, String>,
    /// The results, without tables and distributions.
    pub report: Report,
    /// Round trips of all distributions.
    pub round_trips: Vec<CountedRoundTrips>,
}

impl Part {
    /// Creates a part without results.
    pub fn new(options: &Options, groups: usize, report: Report) -> Self {
        Self {
            format: FORMAT,
            options: options.of_plan(),
            groups,
            done: BTreeMap::new(),
            report,
            round_trips: Vec::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Malformed`] with the cause.
    pub fn read(path: &Path) -> Result<Self> {
        let text = results::read_text(path)?;
        Self::parse(&text).map_err(|why| Error::Malformed {
            what: path.display().to_string(),
            why,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let part: Self = serde_json::from_str(text)
            .map_err(|error| format!("it is not a part of a run: {error}"))?;
        if part.format != FORMAT {
            return Err(format!(
                "it has format {}, but this taupe-lab reads format {FORMAT}: use the taupe-lab \
                 that wrote it",
                part.format
            ));
        }
        if part.done.keys().any(|group| *group >= part.groups) {
            return Err(format!(
                "it has more groups than the {} of its run",
                part.groups
            ));
        }
        Ok(part)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for results that JSON cannot represent.
    pub fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| {
            Error::unmet(format!("cannot encode a part of a run as JSON: {error}"))
        })
    }
}

/// A part with the name of its file, for messages.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedPart {
    /// The path of the file.
    pub name: String,
    /// Its content.
    pub part: Part,
}

/// Reads all parts in a folder, in the order of their names.
///
/// # Errors
///
/// As [`Part::read`].
pub fn read_folder(folder: &Path) -> Result<Vec<NamedPart>> {
    let paths = file_names(folder)?.into_iter();
    let paths = paths.map(|name| folder.join(name));
    paths.map(|path| read_named(&path)).collect()
}

/// Reads parts from files, and all parts in folders.
///
/// # Errors
///
/// As [`Part::read`]; [`Error::Unmet`] for a folder without parts.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<NamedPart>> {
    let mut parts = Vec::new();
    for path in paths {
        if !path.is_dir() {
            parts.push(read_named(path)?);
            continue;
        }
        let found = read_folder(path)?;
        ensure!(
            !found.is_empty(),
            "{} has no file part-….json: name a folder in which `taupe-lab run --minutes` wrote \
             its report",
            path.display()
        );
        parts.extend(found);
    }
    Ok(parts)
}

fn read_named(path: &Path) -> Result<NamedPart> {
    Ok(NamedPart {
        name: path.display().to_string(),
        part: Part::read(path)?,
    })
}

/// Returns the path for the next part in a folder.
///
/// # Errors
///
/// [`Error::Io`]; [`Error::Unmet`] if there are too many.
pub fn next_path(folder: &Path) -> Result<PathBuf> {
    let taken: BTreeSet<String> = file_names(folder)?.into_iter().collect();
    let names = (1..=MAX_PARTS).map(|number| format!("part-{number:02}.json"));
    let free = names.into_iter().find(|name| !taken.contains(name));
    free.map(|name| folder.join(name)).ok_or_else(|| {
        Error::unmet(format!(
            "{} has {MAX_PARTS} parts already: choose another folder with --out",
            folder.display()
        ))
    })
}

/// Returns the names of the parts in a folder, sorted by their numbers.
fn file_names(folder: &Path) -> Result<Vec<String>> {
    let failed = || Error::io(folder.display().to_string());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed())? {
        let name = entry.map_err(failed())?.file_name();
        names.extend(name.to_str().map(str::to_owned));
    }
    names.retain(|name| number(name).is_some());
    names.sort_by_key(|name| (number(name), name.clone()));
    Ok(names)
}

/// Returns the number in `part-01.json`.
fn number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("part-")?.strip_suffix(".json")?;
    let is_number = number.chars().all(|digit| digit.is_ascii_digit());
    is_number.then(|| number.parse().ok())?
}

/// Checks that a run with these options can continue the parts.
///
/// # Errors
///
/// [`Error::Unmet`] if a part belongs to a run with other options.
pub fn check_options(parts: &[NamedPart], options: &Options) -> Result<()> {
    let options = options.of_plan();
    let other = parts.iter().find(|named| named.part.options != options);
    match other {
        None => Ok(()),
        Some(named) => Err(Error::unmet(format!(
            "{} is part of a run with other options: repeat the command that wrote it, or choose \
             another folder with --out",
            named.name
        ))),
    }
}

/// Returns the groups that the parts have measured.
pub fn done(parts: &[NamedPart]) -> BTreeSet<usize> {
    let done = parts.iter().flat_map(|named| named.part.done.keys());
    done.copied().collect()
}

/// Joins the parts of one run into a report, in the order of the run.
///
/// # Errors
///
/// [`Error::Unmet`] if there are no parts, or if two of them have other options, come from other
/// machines, measured other versions, or measured the same group.
pub fn merge(parts: &[NamedPart]) -> Result<Report> {
    let mut parts: Vec<&NamedPart> = parts.iter().collect();
    // A part without results has no first group.
    parts.sort_by_key(|named| named.part.done.keys().next().copied().unwrap_or(usize::MAX));
    let Some((first, rest)) = parts.split_first() else {
        return Err(Error::unmet("there are no parts to join"));
    };
    let mut done = BTreeMap::new();
    for named in &parts {
        check_same_run(first, named)?;
        for (group, label) in &named.part.done {
            if let Some(other) = done.insert(*group, &named.name) {
                return Err(Error::unmet(format!(
                    "{other} and {} both have “{label}”: leave one of them out",
                    named.name
                )));
            }
        }
    }
    let mut report = first.part.report.clone();
    for named in rest {
        add(&mut report, &named.part.report);
        for entry in &named.part.report.contestants {
            add_contestant(&mut report.contestants, entry, &named.name)?;
        }
    }
    let started = parts.iter().map(|named| &named.part.report.started).min();
    report.started = started.cloned().unwrap_or_default();
    report.complete = done.len() == first.part.groups;
    report.distributions = counted::distributions(&parts)?;
    report.tables = tables::all(&report);
    Ok(report)
}

fn check_same_run(first: &NamedPart, other: &NamedPart) -> Result<()> {
    let (one, two) = (&first.part, &other.part);
    ensure!(
        one.options == two.options && one.groups == two.groups,
        "{} and {} are parts of runs with different options: join only parts of one command",
        first.name,
        other.name
    );
    let machine = |machine: &Machine| {
        let Machine {
            processor,
            cores,
            kernel,
            ..
        } = machine;
        format!("{processor}, {cores} cores, Linux {kernel}")
    };
    let (here, there) = (machine(&one.report.machine), machine(&two.report.machine));
    ensure!(
        here == there,
        "{} is from {here}, but {} from {there}: repeat one of them on the other machine",
        first.name,
        other.name
    );
    Ok(())
}

/// Adds the results of a later part.
fn add(report: &mut Report, later: &Report) {
    report.seconds += later.seconds;
    for series in &later.series {
        let mut metrics = later.metrics.iter();
        let Some(metric) = metrics.find(|metric| metric.key == series.metric) else {
            continue;
        };
        for sample in &series.samples {
            report.record(&series.contestant, metric, *sample);
        }
    }
    report.failures.extend(later.failures.iter().cloned());
}

/// Adds a contestant of a later part. If the contestant is known, checks that the version is the
/// same.
fn add_contestant(all: &mut Vec<Entry>, entry: &Entry, name: &str) -> Result<()> {
    let Some(known) = all.iter_mut().find(|known| known.id == entry.id) else {
        all.push(entry.clone());
        return Ok(());
    };
    match (&known.unavailable, &entry.unavailable) {
        (None, None) => ensure!(
            known.version == entry.version,
            "{name} has version {} of {}, but an earlier part has {}: measure all parts with \
             the same programs",
            entry.version.as_deref().unwrap_or("?"),
            entry.title,
            known.version.as_deref().unwrap_or("?")
        ),
        // The contestant is available if it could run in any part.
        (Some(_), None) => *known = entry.clone(),
        (_, Some(_)) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;

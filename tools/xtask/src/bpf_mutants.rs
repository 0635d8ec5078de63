//! `cargo xtask bpf-mutants`: faults that are planted in the eBPF programs of transparent mode, and
//! whether a kernel test finds each.
//!
//! A fault is a token of C that is replaced, or a statement that is left out. The results are in
//! `tools/xtask/bpf-mutants.tsv`, one line for each mutant, with a hash of its function's tokens: a
//! mutant of a function that has changed is examined again. A mutant that no test finds has the
//! reason why it may live in the last column. Mutants are examined in an order that looks random,
//! so that those examined so far are a sample of all.
//!
//! The tests run in network namespaces of their own, and [`isolation`] keeps mutants from
//! affecting others.

mod c_source;
mod isolation;
mod kernel_tests;
mod planted_c;
mod results;

use std::fs;
use std::time::{Duration, Instant};

use c_source::CSource;
use isolation::{NOT_EXAMINED, NOT_EXAMINED_FILES};
use kernel_tests::KernelTests;
use planted_c::CMutant;
use results::{BpfOutcome, BpfResults, Entry};

/// The programs of transparent mode.
const FOLDER: &str = "crates/transparent/src/bpf";

const USAGE: &str = "usage: cargo xtask bpf-mutants [--new MINUTES [FILES] | --again FILES]";

/// A mutant and its place.
struct Candidate {
    file: String,
    function: String,
    /// Hash of the function's tokens.
    hash: u64,
    mutant: CMutant,
}

impl Candidate {
    fn key(&self) -> (String, String, String) {
        let description = self.mutant.description.clone();
        (self.file.clone(), self.function.clone(), description)
    }

    /// The place in an order that looks random.
    fn order(&self) -> u64 {
        let (file, function, description) = self.key();
        hash(&[&file, &function, &description]).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Runs a command. Returns false if a mutant lives without a reason.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, String> {
    let (minutes, only, is_again) = match arguments {
        [] => (None, None, false),
        ["--new", minutes] => (Some(*minutes), None, false),
        ["--new", minutes, file] => (Some(*minutes), Some(*file), false),
        ["--again", file] => (Some("600"), Some(*file), true),
        _ => return Err(USAGE.to_owned()),
    };
    let candidates = candidates()?;
    if let Some(minutes) = minutes {
        let minutes: u64 = minutes.parse().map_err(|_| "how many minutes?")?;
        let end = Instant::now() + Duration::from_secs(60 * minutes);
        examine(&candidates, only, is_again, end)?;
    }
    report(&candidates)
}

/// Returns all mutants.
fn candidates() -> Result<Vec<Candidate>, String> {
    let mut candidates = Vec::new();
    let failed = |error: std::io::Error| format!("{FOLDER}: {error}");
    for entry in fs::read_dir(FOLDER).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if !file.ends_with(".h") || NOT_EXAMINED_FILES.contains(&&*file) {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let source = CSource::new(&text);
        for function in source.functions() {
            if NOT_EXAMINED.contains(&&*function.name) {
                continue;
            }
            let tokens: Vec<&str> = function.tokens.clone().map(|at| source.token(at)).collect();
            let hash = hash(&tokens);
            let mutants = planted_c::planted(&source, &function);
            candidates.extend(mutants.into_iter().map(|mutant| Candidate {
                file: file.to_string(),
                function: function.name.clone(),
                hash,
                mutant,
            }));
        }
    }
    candidates.sort_by_key(Candidate::order);
    Ok(candidates)
}

/// FNV-1a of words.
fn hash(words: &[&str]) -> u64 {
    let bytes = words.iter().flat_map(|it| it.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn examine(
    candidates: &[Candidate],
    only: Option<&str>,
    is_again: bool,
    end: Instant,
) -> Result<(), String> {
    let mut results = BpfResults::read()?;
    results.retain(|key, hash| {
        candidates
            .iter()
            .any(|it| it.key() == *key && it.hash == hash)
    });
    let is_due = |it: &&Candidate| {
        let is_missed = |it: &Entry| it.outcome == BpfOutcome::Missed;
        let is_open = results
            .entry(&it.key())
            .is_none_or(|it| is_again && is_missed(it));
        only.is_none_or(|files| files.split(',').any(|file| it.file == file)) && is_open
    };
    let due: Vec<&Candidate> = candidates.iter().filter(is_due).collect();
    println!(
        "{} of {} mutants are to be examined",
        due.len(),
        candidates.len()
    );
    if due.is_empty() {
        return results.write();
    }
    let tests = KernelTests::prepare()?;
    for candidate in due {
        if Instant::now() > end {
            break;
        }
        let (outcome, note) = tests.run(candidate)?;
        let (file, function, description) = candidate.key();
        println!("{outcome:?}: {file}, {function}: {description} ({note})");
        results.add(candidate.key(), candidate.hash, outcome, note);
        // Whatever ends this, nothing is examined twice.
        results.write()?;
    }
    results.write()
}

/// Prints the figures and the survivors without a reason.
fn report(candidates: &[Candidate]) -> Result<bool, String> {
    let results = BpfResults::read()?;
    let current: Vec<&Entry> = candidates
        .iter()
        .filter_map(|it| {
            results
                .entry(&it.key())
                .filter(|entry| entry.hash == it.hash)
        })
        .collect();
    let count = |outcome| current.iter().filter(|it| it.outcome == outcome).count();
    let (caught, missed) = (count(BpfOutcome::Caught), count(BpfOutcome::Missed));
    println!(
        "{} mutants, {} examined: {caught} caught, {missed} missed, {} timeouts, {} unviable",
        candidates.len(),
        current.len(),
        count(BpfOutcome::Timeout),
        count(BpfOutcome::Unviable),
    );
    let mut is_explained = true;
    for candidate in candidates {
        let Some(entry) = results.entry(&candidate.key()) else {
            continue;
        };
        if entry.outcome == BpfOutcome::Missed && entry.note == results::NO_REASON {
            let (file, function, description) = candidate.key();
            println!("lives: {file}, {function}: {description}");
            is_explained = false;
        }
    }
    Ok(is_explained)
}

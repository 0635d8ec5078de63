//! Describes the machine and the programs of a run.

use crate::results::Machine;
use crate::tcp::DEFAULT_CONGESTION;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use taupe_lab::process;

/// Describes the processor, memory and system of this machine. Unreadable values are empty: they
/// are only displayed.
pub(crate) fn describe() -> Machine {
    let processor = field("/proc/cpuinfo", "model name", ':').unwrap_or_default();
    let memory = field("/proc/meminfo", "MemTotal", ':')
        .and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes * 1024);
    let system = field("/etc/os-release", "PRETTY_NAME", '=').unwrap_or_default();
    Machine {
        processor,
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory,
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        system: system.trim_matches('"').to_owned(),
        congestion_control: DEFAULT_CONGESTION.to_owned(),
    }
}

/// Returns the current time: RFC 3339, UTC.
pub(crate) fn now() -> String {
    output_of(&["date", "-u", "+%FT%TZ"])
}

/// Returns the versions of the measuring programs, and Taupe's commit.
pub(crate) fn tools() -> BTreeMap<String, String> {
    let word = |text: String, at: usize| text.split_whitespace().nth(at).map(str::to_owned);
    let known = [
        ("iperf3", word(output_of(&["iperf3", "--version"]), 1)),
        ("qperf", word(output_of(&["qperf", "--version"]), 1)),
        ("taupe's commit", commit()),
    ];
    let known = known.into_iter();
    known
        .filter_map(|(name, version)| Some((name.to_owned(), version?)))
        .collect()
}

/// Environment variable with the commit of a pack's Taupe.
pub(crate) const COMMIT: &str = "TAUPE_LAB_COMMIT";

/// Returns the checked-out commit, with `+` if files differ from it; `None` without a repository.
/// It distinguishes builds of the same version.
pub(crate) fn commit() -> Option<String> {
    if let Ok(commit) = std::env::var(COMMIT) {
        return Some(commit);
    }
    let git = |words: &[&str]| {
        let line = ["git", "-C", env!("CARGO_MANIFEST_DIR")];
        output_of(&[&line, words].concat())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let mark = if changed.is_empty() { "" } else { "+" };
    (!commit.is_empty()).then(|| format!("{commit}{mark}"))
}

/// Returns the output of a command; empty if it fails.
fn output_of(command: &[&str]) -> String {
    let mut line = Command::new(command[0]);
    line.args(&command[1..]);
    process::attempt("this machine", line, None)
        .map(|attempt| attempt.stdout.trim().to_owned())
        .unwrap_or_default()
}

/// Returns the value of the first line of a file that begins with `name`.
fn field(path: &str, name: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(separator)?.1.trim().to_owned())
}

//! Runs the tests of a package with each mutant of a function, by `cargo-mutants`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::planted::{Function, program};
use super::{Module, Mutant};

/// The end of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(crate) enum Outcome {
    /// A test fails.
    #[serde(rename = "CaughtMutant")]
    Caught,
    /// All tests pass.
    #[serde(rename = "MissedMutant")]
    Missed,
    /// The tests do not end in time.
    Timeout,
    /// It does not compile.
    Unviable,
}

/// `outcomes.json` of `cargo-mutants`.
#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    scenario: Scenario,
    summary: Outcome,
}

#[derive(Deserialize)]
enum Scenario {
    Mutant { name: String },
}

/// A copy of the sources in which mutants are planted.
pub(crate) struct Runner<'m> {
    module: &'m Module,
    folder: PathBuf,
}

impl<'m> Runner<'m> {
    /// Copies the sources.
    pub(crate) fn prepare(module: &'m Module) -> Result<Self, String> {
        let cache = std::env::var_os("TAUPE_MUTANTS")
            .map(PathBuf::from)
            .ok_or("TAUPE_MUTANTS must name a folder for the copy; scripts/mutants sets it")?;
        let folder = cache.join("tree");
        copy(&folder)?;
        let runner = Self { module, folder };
        runner.baseline()?;
        Ok(runner)
    }

    /// The tests must pass without a mutant.
    fn baseline(&self) -> Result<(), String> {
        let mut command = Command::new("cargo");
        command.args([
            "test",
            "--quiet",
            "--tests",
            "--package",
            self.module.package,
        ]);
        command.current_dir(&self.folder).stdout(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!(
                "the tests of {} fail without a mutant: {status}",
                self.module.package
            )),
            Err(error) => Err(format!("cargo: {error}")),
        }
    }

    /// Runs the tests with each mutant of a function.
    pub(crate) fn run(&self, function: &Function) -> Result<Vec<(Mutant, Outcome)>, String> {
        let results = self.folder.join("../results");
        let _ = fs::remove_dir_all(&results);
        fs::create_dir_all(&results).map_err(|error| error.to_string())?;
        let mut command = Command::new(program());
        command.args([
            "mutants",
            "--in-place",
            "--baseline",
            "skip",
            "--no-shuffle",
        ]);
        command.args([
            "--cap-lints",
            "true",
            "--colors",
            "never",
            "--build-timeout",
            "300",
        ]);
        command.args(["--timeout", &self.module.limit.as_secs().to_string()]);
        command.args(["--package", self.module.package, "--file", &function.file]);
        command.arg("--re").arg(pattern(&function.name));
        command.arg("--output").arg(&results);
        command.arg("--").args(self.module.tests);
        command.current_dir(&self.folder);
        let output = command.output().map_err(|error| error.to_string())?;
        let path = results.join("mutants.out/outcomes.json");
        let text = fs::read(&path).map_err(|error| {
            format!(
                "{}: {error}: {}",
                path.display(),
                String::from_utf8_lossy(&output.stderr)
            )
        })?;
        let found: Outcomes =
            serde_json::from_slice(&text).map_err(|error| format!("outcomes.json: {error}"))?;
        let mut outcomes = Vec::new();
        for mutant in &function.mutants {
            let mut entries = found.outcomes.iter();
            let entry = entries.find(|entry| {
                let Scenario::Mutant { name } = &entry.scenario;
                *name == mutant.name
            });
            let entry = entry.ok_or_else(|| format!("{} was not run", mutant.name))?;
            outcomes.push((mutant.clone(), entry.summary));
            if entry.summary != Outcome::Caught {
                println!("{:?}: {}", entry.summary, mutant.name);
            }
        }
        println!("{}: {} of {}", function.file, function.name, outcomes.len());
        Ok(outcomes)
    }
}

/// Returns a regular expression for the names of a function's mutants. It may match those of other
/// functions too, since it has a dot for each character with a meaning.
fn pattern(function: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "_: ".contains(it);
    let plain: String = function
        .chars()
        .map(|it| if is_plain(it) { it } else { '.' })
        .collect();
    format!("(: replace {plain}( |$)| in {plain}$)")
}

/// Copies the files of the repository. Files that are the same keep their times, so that only what has
/// changed is compiled.
fn copy(folder: &Path) -> Result<(), String> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    let output = Command::new("git").args(["ls-files", "-z"]).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: BTreeSet<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
    let list = names.iter().copied().collect::<Vec<_>>().join("\n");
    let written = folder.with_extension("list");
    if fs::read_to_string(&written).is_ok_and(|before| before != list) {
        fs::remove_dir_all(folder).map_err(failed(folder))?;
    }
    for name in names {
        let Ok(contents) = fs::read(name) else {
            // A link to a folder, or a file that was removed.
            continue;
        };
        let to = folder.join(name);
        if fs::read(&to).is_ok_and(|before| before == contents) {
            continue;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        fs::copy(name, &to).map_err(failed(&to))?;
    }
    fs::write(&written, list).map_err(failed(&written))
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn a_pattern_has_no_characters_with_a_meaning() {
        let name = ".impl Display for Sum..a..::fmt";
        let expected = format!("(: replace {name}( |$)| in {name}$)");
        assert_eq!(pattern("<impl Display for Sum<'a>>::fmt"), expected);
    }
}

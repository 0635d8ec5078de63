//! The tables of results.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io;

use super::runner::Outcome;
use super::{Function, Module, Mutant};

const RESULTS: &str = "tools/xtask/mutants.tsv";
const SURVIVORS: &str = "tools/xtask/survivors.tsv";

/// Reason of a survivor that nobody has examined.
const NO_REASON: &str = "?";

/// The results of a function's mutants.
#[derive(Clone, Copy, Default)]
pub(crate) struct FunctionResult {
    hash: u64,
    pub(crate) caught: u64,
    pub(crate) missed: u64,
    pub(crate) timeouts: u64,
    pub(crate) unviable: u64,
}

/// A mutant that no test finds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Survivor {
    file: String,
    function: String,
    description: String,
    reason: String,
}

impl fmt::Display for Survivor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.description)
    }
}

/// File and function.
type Key = (String, String);

#[derive(Default)]
pub(crate) struct ResultTable {
    results: BTreeMap<Key, FunctionResult>,
    survivors: Vec<Survivor>,
}

fn key(function: &Function) -> Key {
    let Function {
        file, name, number, ..
    } = function;
    let name = match number {
        1 => name.clone(),
        number => format!("{name} ({number})"),
    };
    (file.clone(), name)
}

impl ResultTable {
    pub(crate) fn read() -> Result<Self, String> {
        let mut table = Self::default();
        for line in lines(RESULTS)? {
            let fields: Vec<&str> = line.split('\t').collect();
            let result = result(&fields).ok_or_else(|| format!("{RESULTS}: {line}"))?;
            let name = (fields[0].to_owned(), fields[1].to_owned());
            table.results.insert(name, result);
        }
        for line in lines(SURVIVORS)? {
            let fields: Vec<&str> = line.split('\t').collect();
            let [file, function, description, reason] = fields[..] else {
                return Err(format!("{SURVIVORS}: {line}"));
            };
            table.survivors.push(Survivor {
                file: file.to_owned(),
                function: function.to_owned(),
                description: description.to_owned(),
                reason: reason.to_owned(),
            });
        }
        Ok(table)
    }

    pub(crate) fn write(&self) -> Result<(), String> {
        let mut results = "# file\tfunction\thash\tcaught\tmissed\ttimeouts\tunviable\n".to_owned();
        for ((file, function), result) in &self.results {
            let FunctionResult {
                hash,
                caught,
                missed,
                timeouts,
                unviable,
            } = result;
            let _ = writeln!(
                results,
                "{file}\t{function}\t{hash:016x}\t{caught}\t{missed}\t{timeouts}\t{unviable}"
            );
        }
        let mut survivors = self.survivors.clone();
        survivors.sort();
        let mut text = "# file\tfunction\tmutant\treason\n".to_owned();
        for it in survivors {
            let Survivor {
                file,
                function,
                description,
                reason,
            } = it;
            let _ = writeln!(text, "{file}\t{function}\t{description}\t{reason}");
        }
        for (path, text) in [(RESULTS, results), (SURVIVORS, text)] {
            fs::write(path, text).map_err(|error| format!("{path}: {error}"))?;
        }
        Ok(())
    }

    /// Returns the results of a function if its text is as it was.
    pub(crate) fn result(&self, function: &Function) -> Option<&FunctionResult> {
        let result = self.results.get(&key(function));
        result.filter(|result| result.hash == function.hash)
    }

    /// Returns true if a function was examined, perhaps with another text.
    pub(crate) fn knows(&self, function: &Function) -> bool {
        self.results.contains_key(&key(function))
    }

    /// Removes functions of a module that exist no more.
    pub(crate) fn retain(&mut self, module: &Module, functions: &[Function]) {
        let names: Vec<Key> = functions.iter().map(key).collect();
        let is_of_module = |file: &str| module.paths.iter().any(|path| file.starts_with(path));
        let stays = |name: &Key| !is_of_module(&name.0) || names.contains(name);
        self.results.retain(|name, _| stays(name));
        let of = |it: &Survivor| (it.file.clone(), it.function.clone());
        self.survivors.retain(|it| stays(&of(it)));
    }

    /// Adds the outcomes of a function's mutants. A survivor keeps the reason that it had.
    pub(crate) fn add(&mut self, function: &Function, outcomes: &[(Mutant, Outcome)]) {
        let mut result = FunctionResult {
            hash: function.hash,
            ..FunctionResult::default()
        };
        let (file, name) = key(function);
        let is_of = |it: &Survivor| it.file == file && it.function == name;
        let (before, others): (Vec<_>, Vec<_>) = self.survivors.drain(..).partition(is_of);
        self.survivors = others;
        for (mutant, outcome) in outcomes {
            match outcome {
                Outcome::Caught => result.caught += 1,
                Outcome::Timeout => result.timeouts += 1,
                Outcome::Unviable => result.unviable += 1,
                Outcome::Missed => {
                    result.missed += 1;
                    let known = before
                        .iter()
                        .find(|it| it.description == mutant.description);
                    self.survivors.push(Survivor {
                        file: file.clone(),
                        function: name.clone(),
                        description: mutant.description.clone(),
                        reason: known.map_or(NO_REASON.to_owned(), |it| it.reason.clone()),
                    });
                }
            }
        }
        self.results.insert((file, name), result);
    }

    /// Returns the survivors that have no reason.
    pub(crate) fn unexplained(&self) -> impl Iterator<Item = &Survivor> {
        self.survivors.iter().filter(|it| it.reason == NO_REASON)
    }
}

fn result(fields: &[&str]) -> Option<FunctionResult> {
    let [_, _, hash, caught, missed, timeouts, unviable] = fields[..] else {
        return None;
    };
    Some(FunctionResult {
        hash: u64::from_str_radix(hash, 16).ok()?,
        caught: caught.parse().ok()?,
        missed: missed.parse().ok()?,
        timeouts: timeouts.parse().ok()?,
        unviable: unviable.parse().ok()?,
    })
}

/// Returns the lines of a table, without comments. A table that does not exist is empty.
fn lines(path: &str) -> Result<Vec<String>, String> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| format!("{path}: {error}"))?,
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

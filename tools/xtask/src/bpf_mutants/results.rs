//! The table of results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::{fs, io};

const TABLE: &str = "tools/xtask/bpf-mutants.tsv";

/// Reason of a survivor that nobody has examined.
pub(super) const NO_REASON: &str = "?";

/// The end of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BpfOutcome {
    /// A test fails.
    Caught,
    /// All tests pass.
    Missed,
    /// The tests do not end in time.
    Timeout,
    /// The compiler or the kernel's verifier refuses it, or the object is the same as without it.
    Unviable,
}

const OUTCOMES: [(BpfOutcome, &str); 4] = [
    (BpfOutcome::Caught, "caught"),
    (BpfOutcome::Missed, "missed"),
    (BpfOutcome::Timeout, "timeout"),
    (BpfOutcome::Unviable, "unviable"),
];

/// File, function and description.
pub(super) type MutantKey = (String, String, String);

/// The result of a mutant.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) hash: u64,
    pub(super) outcome: BpfOutcome,
    /// The test that fails, the reason why it may live, or why it cannot run.
    pub(super) note: String,
}

#[derive(Default)]
pub(super) struct BpfResults(BTreeMap<MutantKey, Entry>);

impl BpfResults {
    pub(super) fn read() -> Result<Self, String> {
        match fs::read_to_string(TABLE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{TABLE}: {error}")),
            Ok(text) => Self::parse(&text),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let entries = lines.map(|line| entry(line).ok_or_else(|| format!("{TABLE}: {line}")));
        Ok(Self(entries.collect::<Result<_, _>>()?))
    }

    pub(super) fn write(&self) -> Result<(), String> {
        let mut text = "# file\tfunction\thash\tmutant\toutcome\ttest or reason\n".to_owned();
        for ((file, function, description), entry) in &self.0 {
            let Entry {
                hash,
                outcome,
                note,
            } = entry;
            let outcome = OUTCOMES.iter().find(|it| it.0 == *outcome);
            let outcome = outcome.map_or("", |it| it.1);
            let _ = writeln!(
                text,
                "{file}\t{function}\t{hash:016x}\t{description}\t{outcome}\t{note}"
            );
        }
        fs::write(TABLE, text).map_err(|error| format!("{TABLE}: {error}"))
    }

    pub(super) fn entry(&self, key: &MutantKey) -> Option<&Entry> {
        self.0.get(key)
    }

    pub(super) fn retain(&mut self, is_current: impl Fn(&MutantKey, u64) -> bool) {
        self.0.retain(|key, entry| is_current(key, entry.hash));
    }

    /// Adds a result. A survivor keeps the reason that it had.
    pub(super) fn add(&mut self, key: MutantKey, hash: u64, outcome: BpfOutcome, note: String) {
        let before = self.0.get(&key);
        let known = before.filter(|it| it.outcome == BpfOutcome::Missed && it.hash == hash);
        let note = match (outcome, known) {
            (BpfOutcome::Missed, Some(known)) => known.note.clone(),
            (BpfOutcome::Missed, None) => NO_REASON.to_owned(),
            _ => note,
        };
        let entry = Entry {
            hash,
            outcome,
            note,
        };
        self.0.insert(key, entry);
    }
}

fn entry(line: &str) -> Option<(MutantKey, Entry)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [file, function, hash, description, outcome, note] = fields[..] else {
        return None;
    };
    let entry = Entry {
        hash: u64::from_str_radix(hash, 16).ok()?,
        outcome: OUTCOMES.iter().find(|it| it.1 == outcome)?.0,
        note: note.to_owned(),
    };
    let key = (file.to_owned(), function.to_owned(), description.to_owned());
    Some((key, entry))
}

#[cfg(test)]
mod tests {
    use super::{BpfOutcome, BpfResults, NO_REASON};

    #[test]
    fn a_survivor_keeps_its_reason_until_its_function_changes() {
        let key = (
            "a.h".to_owned(),
            "f".to_owned(),
            "1 becomes 2 #1".to_owned(),
        );
        let text = "a.h\tf\t0000000000000007\t1 becomes 2 #1\tmissed\tequal\n";
        for (hash, reason) in [(7, "equal"), (8, NO_REASON)] {
            let mut results = BpfResults::parse(text).expect("a table");
            results.add(key.clone(), hash, BpfOutcome::Missed, String::new());
            assert_eq!(results.entry(&key).expect("a result").note, reason);
        }
    }
}

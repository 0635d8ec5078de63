//! The table of counts, which is also the file of ceilings.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::workspace::Result;

/// The things that are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lint {
    Comments,
    Types,
    Files,
    Systems,
    Circles,
}

impl Lint {
    /// In the order of columns.
    const ALL: [Self; 5] = [
        Self::Comments,
        Self::Types,
        Self::Files,
        Self::Systems,
        Self::Circles,
    ];

    /// The column's head.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Comments => "comments",
            Self::Types => "types",
            Self::Files => "files",
            Self::Systems => "systems",
            Self::Circles => "circles",
        }
    }
}

/// The counts of a crate, in the order of columns.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts([usize; Lint::ALL.len()]);

impl Counts {
    pub(super) fn add(&mut self, lint: Lint) {
        self.0[lint as usize] += 1;
    }
}

/// A row for each crate.
#[derive(Default)]
pub(super) struct Table(BTreeMap<String, Counts>);

impl Table {
    pub(super) fn insert(&mut self, name: String, counts: Counts) {
        self.0.insert(name, counts);
    }

    /// Reads a file that a table was written to.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let wrong = |line: &str| {
            format!(
                "{}: `{line}` is not a name and {} numbers",
                path.display(),
                Lint::ALL.len()
            )
        };
        let mut table = Self::default();
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        for line in text.lines().skip(1).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let name = words.next().ok_or_else(|| wrong(line))?;
            let numbers: std::result::Result<Vec<usize>, _> = words.map(str::parse).collect();
            let numbers = numbers
                .ok()
                .and_then(|numbers| numbers.try_into().ok())
                .ok_or_else(|| wrong(line))?;
            // The last row is worked out from the others.
            if name != SUM {
                table.insert(name.to_owned(), Counts(numbers));
            }
        }
        Ok(table)
    }

    /// Returns a line for each count that is not its ceiling. Crates without a row have ceilings
    /// of zero.
    pub(super) fn differences(&self, counted: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, counts) in &counted.0 {
            let ceilings = self.0.get(name).copied().unwrap_or_default();
            for lint in Lint::ALL {
                let (count, ceiling) = (counts.0[lint as usize], ceilings.0[lint as usize]);
                if count != ceiling {
                    lines.push(format!(
                        "{name}: {} {}, the ceiling is {ceiling}",
                        count,
                        lint.name()
                    ));
                }
            }
        }
        let gone = self.0.keys().filter(|name| !counted.0.contains_key(*name));
        lines.extend(gone.map(|name| format!("{name} is no crate")));
        lines
    }

    /// Returns a line for each column whose sum is greater in `counted`.
    pub(super) fn risen(&self, counted: &Self) -> Vec<String> {
        let pairs = Lint::ALL
            .into_iter()
            .map(|lint| (lint, self.sum(lint), counted.sum(lint)));
        let line = |(lint, before, now): (Lint, usize, usize)| {
            format!("{} rose from {before} to {now}", lint.name())
        };
        pairs
            .filter(|(_, before, now)| now > before)
            .map(line)
            .collect()
    }

    fn sum(&self, lint: Lint) -> usize {
        self.0.values().map(|counts| counts.0[lint as usize]).sum()
    }
}

/// The name of the last row.
const SUM: &str = "all";

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, cells: [String; Lint::ALL.len()]| {
            write!(f, "{name:20}")?;
            for cell in cells {
                write!(f, " {cell:>9}")?;
            }
            writeln!(f)
        };
        row("crate", Lint::ALL.map(|lint| lint.name().to_owned()))?;
        for (name, counts) in &self.0 {
            row(name, counts.0.map(|count| count.to_string()))?;
        }
        row(SUM, Lint::ALL.map(|lint| self.sum(lint).to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, Table};

    fn table(rows: &[(&str, [usize; 5])]) -> Table {
        Table(
            rows.iter()
                .map(|(name, counts)| ((*name).to_owned(), Counts(*counts)))
                .collect(),
        )
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("xtask-table-{}", std::process::id()));
        let written = table(&[("a", [1, 2, 3, 4, 5]), ("b", [0; 5])]);
        std::fs::write(&path, written.to_string()).unwrap();
        let read = Table::read(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(written.differences(&read.unwrap()).is_empty());
    }

    #[test]
    fn each_count_must_be_its_ceiling() {
        let ceilings = table(&[("a", [5, 0, 0, 0, 0]), ("gone", [0; 5])]);
        let counted = table(&[("a", [4, 0, 0, 0, 0]), ("b", [0, 1, 0, 0, 0])]);
        assert_eq!(
            ceilings.differences(&counted),
            [
                "a: 4 comments, the ceiling is 5",
                "b: 1 types, the ceiling is 0",
                "gone is no crate"
            ]
        );
        assert_eq!(ceilings.risen(&counted), ["types rose from 0 to 1"]);
    }

    #[test]
    fn counts_may_move_between_crates() {
        let ceilings = table(&[("a", [5, 0, 0, 0, 0])]);
        assert!(
            ceilings
                .risen(&table(&[("a", [2, 0, 0, 0, 0]), ("b", [3, 0, 0, 0, 0])]))
                .is_empty()
        );
    }
}

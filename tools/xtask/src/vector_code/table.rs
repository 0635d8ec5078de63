//! The table of places with their reasons.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::{fs, io};

use super::findings::Finding;

pub(super) const TABLE: &str = "constant-time/vector-code.tsv";

/// Reason of a place that nobody has examined.
const NO_REASON: &str = "?";

const KINDS: [&str; 9] = [
    "branch",
    "indirect",
    "address",
    "gather",
    "masked access",
    "division",
    "repetition",
    "call",
    super::OTHERS,
];

/// Places that look alike in a function.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    count: u64,
    reason: String,
}

#[derive(Default)]
pub(super) struct FindingTable {
    compiler: String,
    rows: BTreeMap<Finding, Row>,
}

impl FindingTable {
    pub(super) fn read() -> Result<Self, String> {
        match fs::read_to_string(TABLE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{TABLE}: {error}")),
            Ok(text) => Self::parse(&text),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self::default();
        for line in text.lines() {
            if let Some(compiler) = line.strip_prefix("# compiler: ") {
                table.compiler = compiler.to_owned();
            }
            if line.starts_with('#') {
                continue;
            }
            let (finding, row) = row(line).ok_or_else(|| format!("{TABLE}: {line}"))?;
            table.rows.insert(finding, row);
        }
        Ok(table)
    }

    /// Puts the places that were found into the table. A place keeps its reason.
    pub(super) fn replace(&mut self, compiler: String, found: BTreeMap<Finding, u64>) {
        let before = std::mem::take(&mut self.rows);
        self.compiler = compiler;
        self.rows.extend(found.into_iter().map(|(finding, count)| {
            let known = before.get(&finding).filter(|it| count <= it.count);
            let reason = known.map_or(NO_REASON, |it| it.reason.as_str()).to_owned();
            (finding, Row { count, reason })
        }));
    }

    pub(super) fn write(&self) -> Result<(), String> {
        let mut text = format!("# compiler: {}\n", self.compiler);
        text.push_str("# function\tkind\tinstruction\torigins\tplaces\treason\n");
        for (finding, Row { count, reason }) in &self.rows {
            let Finding {
                function,
                kind,
                mnemonic,
                origins,
            } = finding;
            let _ = writeln!(
                text,
                "{function}\t{kind}\t{mnemonic}\t{origins}\t{count}\t{reason}"
            );
        }
        fs::write(TABLE, text).map_err(|error| format!("{TABLE}: {error}"))
    }

    /// Returns the differences between the table and the places that were found.
    pub(super) fn faults(&self, compiler: &str, found: &BTreeMap<Finding, u64>) -> Vec<String> {
        let mut faults = Vec::new();
        for (finding, count) in found {
            match self.rows.get(finding) {
                Some(row) if row.reason == NO_REASON => {
                    faults.push(format!("without a reason: {finding}"));
                }
                Some(row) if row.count == *count => {}
                Some(row) => {
                    let expected = row.count;
                    faults.push(format!("{count} and not {expected}: {finding}"));
                }
                None => faults.push(format!("new, {count}: {finding}")),
            }
        }
        let vanished = self.rows.keys().filter(|it| !found.contains_key(it));
        faults.extend(vanished.map(|it| format!("vanished: {it}")));
        if compiler != self.compiler {
            let expected = &self.compiler;
            faults.push(format!(
                "the table is for {expected}, and the program is by {compiler}: use that compiler, or \
                 read the machine code of all differences and write the table again"
            ));
        }
        faults
    }
}

fn row(line: &str) -> Option<(Finding, Row)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [function, kind, mnemonic, origins, count, reason] = fields[..] else {
        return None;
    };
    let finding = Finding {
        function: function.to_owned(),
        kind: KINDS.into_iter().find(|it| *it == kind)?,
        mnemonic: mnemonic.to_owned(),
        origins: origins.to_owned(),
    };
    let row = Row {
        count: count.parse().ok()?,
        reason: reason.to_owned(),
    };
    Some((finding, row))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::findings::Finding;
    use super::FindingTable;

    fn branch(origins: &str) -> Finding {
        Finding {
            function: "a::f".to_owned(),
            kind: "branch",
            mnemonic: "jne".to_owned(),
            origins: origins.to_owned(),
        }
    }

    #[test]
    fn differences_are_faults() {
        let text = "# compiler: rustc 1\na::f\tbranch\tjne\tconstant\t2\tcounter\n\
            a::f\tbranch\tjne\tcall\t1\t?\n";
        let table = FindingTable::parse(text).expect("a table");
        let faults = |compiler, found: &[(&str, u64)]| {
            let found = found
                .iter()
                .map(|(origins, count)| (branch(origins), *count));
            table.faults(compiler, &found.collect())
        };
        let expected = "without a reason: a::f: branch, jne by call";
        assert_eq!(
            faults("rustc 1", &[("constant", 2), ("call", 1)]),
            [expected]
        );
        let found = [("constant", 3), ("vector", 1)];
        let expected = [
            "3 and not 2: a::f: branch, jne by constant",
            "new, 1: a::f: branch, jne by vector",
            "vanished: a::f: branch, jne by call",
        ];
        assert_eq!(faults("rustc 1", &found), expected);
        assert_eq!(faults("rustc 2", &found).len(), 4);
    }

    #[test]
    fn a_place_keeps_its_reason_unless_there_are_more() {
        let text = "a::f\tbranch\tjne\tconstant\t2\tcounter\n";
        for (count, reason) in [(1, "counter"), (3, "?")] {
            let mut table = FindingTable::parse(text).expect("a table");
            table.replace(String::new(), BTreeMap::from([(branch("constant"), count)]));
            assert_eq!(table.rows[&branch("constant")].reason, reason);
        }
    }
}

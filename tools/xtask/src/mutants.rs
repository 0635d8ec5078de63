//! `cargo xtask mutants`: faults that `cargo-mutants` plants in the modules that matter most, and
//! whether a test finds each.
//!
//! The results are in `tools/xtask/mutants.tsv`, one line for each function, with a hash of the
//! function's text. So only functions that have changed since are examined again. Mutants that no test
//! finds are in `tools/xtask/survivors.tsv`, each with the reason why it may live.

mod planted;
mod runner;
mod table;

use std::time::{Duration, Instant};

use planted::{Function, Mutant};
use runner::Runner;
use table::{FunctionResult, ResultTable, Survivor};

/// A package, with the paths of its modules that are examined.
pub(crate) struct Module {
    pub(crate) package: &'static str,
    pub(crate) paths: &'static [&'static str],
    /// Arguments of `cargo test` for the tests to run.
    pub(crate) tests: &'static [&'static str],
    /// Time limit of the package's tests, several times what they take.
    pub(crate) limit: Duration,
}

/// Not the examples in documentation, which take long to compile.
const ALL_TESTS: &[&str] = &["--tests"];

const MODULES: [Module; 7] = [
    Module {
        package: "taupe-packet",
        paths: &[
            "crates/packet/src/checksum",
            "crates/packet/src/merge",
            "crates/packet/src/split",
        ],
        tests: ALL_TESTS,
        limit: Duration::from_secs(40),
    },
    Module {
        package: "taupe-protocol",
        paths: &[
            "crates/protocol/src/allowed_ips",
            "crates/protocol/src/handshake",
            "crates/protocol/src/hybrid",
            "crates/protocol/src/peer",
        ],
        tests: &[
            "--lib",
            "--test=behaviour",
            "--test=vectors",
            "--test=hybrid_vectors",
            "--test=bad_input",
            "--test=memory",
        ],
        limit: Duration::from_secs(120),
    },
    Module {
        package: "taupe-nat",
        paths: &[
            "crates/nat/src/flows",
            "crates/nat/src/fragmentation",
            "crates/nat/src/reassembly",
            "crates/nat/src/translate",
        ],
        tests: ALL_TESTS,
        limit: Duration::from_secs(60),
    },
    Module {
        package: "taupe-transparent",
        paths: &[
            "crates/transparent/src/rules",
            "crates/transparent/src/state",
        ],
        tests: ALL_TESTS,
        limit: Duration::from_secs(40),
    },
    Module {
        package: "taupe-uapi",
        paths: &["crates/uapi/src"],
        tests: ALL_TESTS,
        limit: Duration::from_secs(60),
    },
    Module {
        package: "taupe-adapter",
        paths: &["crates/adapter/src/barrier", "crates/adapter/src/journal"],
        tests: ALL_TESTS,
        limit: Duration::from_secs(120),
    },
    Module {
        package: "taupe-config",
        paths: &[
            "crates/config/src/application",
            "crates/config/src/destinations",
            "crates/config/src/file",
        ],
        tests: ALL_TESTS,
        limit: Duration::from_secs(120),
    },
];

/// Parts of paths of code that only tests use.
const OF_TESTS: [&str; 4] = ["fuzzing", "testing", "tests", "_model"];

/// Share of the viable mutants that tests must find, in per cent.
const TARGET: u64 = 95;

/// Runs a command. Returns false if a mutant lives without a reason, or too many live.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, String> {
    match arguments {
        [] => report(),
        [which @ ("--new" | "--changed"), minutes, rest @ ..] => {
            let minutes: u64 = minutes.parse().map_err(|_| "how many minutes?")?;
            let package = match rest {
                [] => None,
                ["--package", package] => Some(*package),
                _ => return Err(USAGE.to_owned()),
            };
            let scope = match *which {
                "--changed" => Scope::Changed,
                _ => Scope::New,
            };
            examine(scope, Duration::from_secs(60 * minutes), package)?;
            report()
        }
        _ => Err(USAGE.to_owned()),
    }
}

const USAGE: &str = "usage: cargo xtask mutants [--new | --changed MINUTES [--package NAME]]";

/// The functions to examine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Those whose text has changed since they were examined.
    Changed,
    /// Those, and all that were never examined.
    New,
}

/// Returns the functions of a module.
fn functions(module: &Module) -> Result<Vec<Function>, String> {
    let mut functions = planted::list(module)?;
    functions.retain(|function| {
        let file = function.file.as_str();
        let is_examined = module.paths.iter().any(|path| file.starts_with(path));
        is_examined && !OF_TESTS.iter().any(|part| file.contains(part))
    });
    Ok(functions)
}

/// Examines functions until the time is over.
fn examine(scope: Scope, time: Duration, package: Option<&str>) -> Result<(), String> {
    let end = Instant::now() + time;
    let mut table = ResultTable::read()?;
    let modules = MODULES
        .iter()
        .filter(|it| package.is_none_or(|name| it.package == name));
    for module in modules {
        let functions = functions(module)?;
        table.retain(module, &functions);
        let is_due =
            |it: &&Function| table.result(it).is_none() && (scope == Scope::New || table.knows(it));
        let new = functions.iter().filter(is_due);
        let new: Vec<&Function> = new.collect();
        if new.is_empty() {
            continue;
        }
        let runner = Runner::prepare(module)?;
        for function in new {
            if Instant::now() > end {
                return table.write();
            }
            let outcomes = runner.run(function)?;
            table.add(function, &outcomes);
            // Whatever ends this, nothing is examined twice.
            table.write()?;
        }
    }
    table.write()
}

/// Prints the figures of each module, and the mutants that live without a reason.
fn report() -> Result<bool, String> {
    let table = ResultTable::read()?;
    let mut total = Figures::default();
    println!("{:<20}{}", "package", Figures::HEADER);
    for module in &MODULES {
        let mut figures = Figures::default();
        for function in functions(module)? {
            figures.add(&function, table.result(&function));
        }
        println!("{:<20}{figures}", module.package);
        total.merge(&figures);
    }
    println!("{:<20}{total}", "all");
    let unexplained: Vec<&Survivor> = table.unexplained().collect();
    for survivor in &unexplained {
        println!("lives: {survivor}");
    }
    let is_found = total.caught * 100 >= TARGET * (total.caught + total.missed);
    if !is_found {
        println!("fewer than {TARGET} % of the mutants are found");
    }
    Ok(unexplained.is_empty() && is_found)
}

/// Figures of several functions.
#[derive(Default)]
struct Figures {
    functions: u64,
    mutants: u64,
    examined: u64,
    caught: u64,
    missed: u64,
    timeouts: u64,
    unviable: u64,
}

impl Figures {
    const HEADER: &'static str =
        "functions   mutants  examined    caught    missed  timeouts  unviable  caught of viable";

    fn add(&mut self, function: &Function, result: Option<&FunctionResult>) {
        self.functions += 1;
        self.mutants += function.mutants.len() as u64;
        let Some(result) = result else {
            return;
        };
        self.examined += function.mutants.len() as u64;
        self.caught += result.caught;
        self.missed += result.missed;
        self.timeouts += result.timeouts;
        self.unviable += result.unviable;
    }

    fn merge(&mut self, other: &Self) {
        self.functions += other.functions;
        self.mutants += other.mutants;
        self.examined += other.examined;
        self.caught += other.caught;
        self.missed += other.missed;
        self.timeouts += other.timeouts;
        self.unviable += other.unviable;
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            self.functions,
            self.mutants,
            self.examined,
            self.caught,
            self.missed,
            self.timeouts,
            self.unviable
        )?;
        match self.caught + self.missed {
            0 => write!(f, "{:>17}", "–"),
            viable => write!(f, "{:>15.1} %", 100.0 * self.caught as f64 / viable as f64),
        }
    }
}

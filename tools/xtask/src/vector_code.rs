//! `cargo xtask vector-code PROGRAM`: the instructions of AVX-512 code whose time can depend on a
//! value, compared with a table in which each has a reason why the value is public.
//!
//! Valgrind, which examines other code for constant time, does not know AVX-512. This reads the
//! machine code. It finds conditional branches, indirect jumps, addresses with an index or a
//! computed base, gathers, accesses with a mask, divisions, repeated instructions and calls, and says
//! which origins the value has. The reasons are in
//! `constant-time/vector-code.tsv`. The table is for one version of the compiler.

mod disassembly;
mod findings;
mod origins;
mod registers;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use disassembly::MachineFunction;
use findings::{Finding, findings};
use table::{FindingTable, TABLE};

/// Modules whose functions are examined even if they have no instruction of AVX-512, because only
/// processors with AVX-512 run them.
const MODULES: [&str; 4] = [
    "taupe_chacha::avx512::",
    "taupe_crypto::x25519::",
    "<taupe_crypto::x25519::",
    "taupe_crypto::blake2s::",
];

/// Crates whose functions are examined if they call others that are.
const CRATES: [&str; 2] = ["taupe_chacha::", "taupe_crypto::"];

/// Part of the names of functions that leak on purpose.
const PLANTED: &str = "planted_avx512";

/// Kinds of planted leaks. Each must be found.
const PLANTED_KINDS: [&str; 4] = ["branch", "address", "gather", "division"];

/// A function of others with AVX-512, in place of its findings.
const OTHERS: &str = "others";

/// Compares a program with the table, or writes the table.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, String> {
    let (path, option) = match arguments {
        [path] => (*path, None),
        [option @ ("--write" | "--list"), path] => (*path, Some(*option)),
        _ => return Err("usage: cargo xtask vector-code [--write | --list] PROGRAM".to_owned()),
    };
    let data = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let compiler = disassembly::compiler(&data).map_err(|error| format!("{path}: {error}"))?;
    let functions = disassembly::functions(path)?;
    let planted = functions.iter().filter(|it| it.name.contains(PLANTED));
    let planted: Vec<&MachineFunction> = planted.collect();
    let examined = with_callers(&functions);
    let mut found: BTreeMap<Finding, u64> = BTreeMap::new();
    for (address, finding) in examined.iter().flat_map(|it| examine(it)) {
        if option == Some("--list") {
            println!("{address:x}: {finding}");
        }
        *found.entry(finding).or_default() += 1;
    }
    let mut table = FindingTable::read()?;
    if option == Some("--list") {
        return Ok(true);
    }
    if option == Some("--write") {
        table.replace(compiler, found);
        table.write()?;
        return Ok(true);
    }
    let planted_right = are_planted_found(&planted);
    let faults = table.faults(&compiler, &found);
    for fault in &faults {
        println!("{fault}");
    }
    let ours = examined.iter().filter(|it| !is_of_others(it));
    let count: u64 = found.values().sum();
    println!(
        "{compiler}: {} functions of Taupe, {count} places; {} of others are listed",
        ours.clone().count(),
        examined.len() - ours.count(),
    );
    if !faults.is_empty() {
        println!("a new place needs a reason in {TABLE}: run with --write, then replace each '?'");
    }
    let failed = u32::from(!faults.is_empty()) + u32::from(!planted_right);
    println!(
        "test result: {} passed; {failed} failed; 0 ignored",
        2 - failed
    );
    Ok(failed == 0)
}

fn is_examined(function: &MachineFunction) -> bool {
    let is_of_module = |it: &&str| function.name.starts_with(*it);
    MODULES.iter().any(is_of_module) || function.instructions.iter().any(|it| it.is_avx512)
}

/// Returns the functions to examine, and those of the cryptography that call them.
fn with_callers(functions: &[MachineFunction]) -> Vec<&MachineFunction> {
    let others = functions.iter().filter(|it| !it.name.contains(PLANTED));
    let (mut examined, mut left): (Vec<_>, Vec<_>) = others.partition(|it| is_examined(it));
    left.retain(|it| CRATES.iter().any(|part| it.name.contains(part)));
    loop {
        let names: BTreeSet<&str> = examined.iter().map(|it| it.name.as_str()).collect();
        let is_caller = |it: &&MachineFunction| {
            let mut callees = it.instructions.iter().filter_map(|it| it.target.as_ref());
            callees.any(|(_, symbol)| names.contains(&*disassembly::plain_name(symbol)))
                && !names.contains(it.name.as_str())
        };
        let (callers, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(is_caller);
        if callers.is_empty() {
            return examined;
        }
        examined.extend(callers);
        left = rest;
    }
}

fn examine(function: &MachineFunction) -> Vec<(u64, Finding)> {
    if is_of_others(function) {
        let finding = Finding {
            function: function.name.clone(),
            kind: OTHERS,
            mnemonic: "–".to_owned(),
            origins: "–".to_owned(),
        };
        return vec![(0, finding)];
    }
    findings(function)
}

/// Returns true for AWS-LC's assembly, whose names have no colons; its local names have no prefix either.
fn is_of_others(function: &MachineFunction) -> bool {
    !function.name.contains("::")
}

/// Returns true if each kind of leak is found in the functions that leak on purpose, with a vector
/// as its origin.
fn are_planted_found(planted: &[&MachineFunction]) -> bool {
    let found: Vec<(u64, Finding)> = planted.iter().flat_map(|it| findings(it)).collect();
    let mut is_right = true;
    for kind in PLANTED_KINDS {
        let leaks = found
            .iter()
            .filter(|(_, it)| it.kind == kind && it.origins.contains("vector"));
        let count = leaks.count();
        println!(
            "planted {kind}: {count} places {}",
            if count > 0 { "ok" } else { "FAILED" }
        );
        is_right &= count > 0;
    }
    is_right
}

//! The mutants that `cargo-mutants` makes, by function.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use super::Module;

/// A function with its mutants.
pub(crate) struct Function {
    /// The file's path from the root of the workspace.
    pub(crate) file: String,
    pub(crate) name: String,
    /// The number among the functions of this name in the file, from 1.
    pub(crate) number: usize,
    /// Hash of the function's text, without indentation.
    pub(crate) hash: u64,
    pub(crate) mutants: Vec<Mutant>,
}

/// A mutant of a function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mutant {
    /// The full name, with line and column.
    pub(crate) name: String,
    /// The name without a place, and the number among those of the function with the same one.
    pub(crate) description: String,
}

/// A mutant as `cargo mutants --list --json` prints it.
#[derive(Deserialize)]
struct Listed {
    file: String,
    name: String,
    /// `None` for the value of a constant.
    function: Option<ListedFunction>,
}

#[derive(Deserialize)]
struct ListedFunction {
    function_name: String,
    span: Span,
}

#[derive(Deserialize)]
struct Span {
    start: Place,
    end: Place,
}

#[derive(Deserialize)]
struct Place {
    /// From 1.
    line: usize,
}

/// Returns the path of `cargo-mutants`.
pub(crate) fn program() -> PathBuf {
    let path = std::env::var_os("TAUPE_CARGO_MUTANTS");
    path.map_or_else(|| PathBuf::from("cargo-mutants"), PathBuf::from)
}

/// Returns the functions of a module's package with their mutants, in the order of their places.
pub(crate) fn list(module: &Module) -> Result<Vec<Function>, String> {
    let mut command = Command::new(program());
    command.args(["mutants", "--list", "--json", "--package", module.package]);
    let output = command.output();
    let output = output.map_err(|error| {
        format!(
            "{}: {error}; scripts/mutants installs it",
            program().display()
        )
    })?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let listed: Vec<Listed> = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo-mutants: {error}"))?;
    let mut functions: Vec<Function> = Vec::new();
    for Listed {
        file,
        name,
        function,
    } in listed
    {
        let Some(function) = function else {
            continue;
        };
        let ListedFunction {
            function_name,
            span,
        } = function;
        let is_same = |it: &&Function| it.file == file && it.name == function_name;
        let hash = hash(&text(&file, &span)?);
        if functions
            .last()
            .is_none_or(|last| !is_same(&last) || last.hash != hash)
        {
            let number = functions.iter().filter(is_same).count() + 1;
            functions.push(Function {
                file: file.clone(),
                name: function_name.clone(),
                number,
                hash,
                mutants: Vec::new(),
            });
        }
        if let Some(last) = functions.last_mut() {
            let plain = without_place(&name).to_owned();
            let same = last.mutants.iter();
            let number = same.filter(|it| it.description.starts_with(&plain)).count() + 1;
            let description = format!("{plain} #{number}");
            last.mutants.push(Mutant { name, description });
        }
    }
    Ok(functions)
}

/// Returns a mutant's name without its file, line and column.
fn without_place(name: &str) -> &str {
    name.split_once(": ").map_or(name, |(_, rest)| rest)
}

fn text(file: &str, span: &Span) -> Result<String, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let lines = text.lines().take(span.end.line).skip(span.start.line - 1);
    Ok(lines.map(str::trim).collect::<Vec<_>>().join("\n"))
}

/// FNV-1a, whose result no version of the standard library changes.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::{hash, without_place};

    /// The vectors of the FNV draft (draft-eastlake-fnv).
    #[test]
    fn hashes_are_those_of_fnv_1a() {
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_description_has_no_place() {
        let name = "crates/packet/src/checksum.rs:28:21: replace + with - in Sum::bytes";
        assert_eq!(without_place(name), "replace + with - in Sum::bytes");
    }
}

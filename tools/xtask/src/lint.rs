//! `cargo xtask lint`: conventions of the source, counted per crate against `ceilings.txt`.

mod circles;
mod comments;
mod files;
mod systems;
mod table;
mod types;

use std::path::{Path, PathBuf};

use crate::tokens::{Token, tokenize, without_tests};
use crate::workspace::{Crate, Result, Workspace};
use table::{Counts, Lint, Table};

/// A source file.
struct Source {
    /// Relative to the workspace.
    path: PathBuf,
    text: String,
}

/// A violation, in words that begin with its place.
struct Finding {
    lint: Lint,
    place: String,
}

/// Compares the counts with the table and prints both where they differ. True if none does.
pub(crate) fn check() -> Result<bool> {
    let workspace = Workspace::read()?;
    let (counted, _) = count(&workspace)?;
    let ceilings = Table::read(&table_path(&workspace))?;
    print!("{counted}");
    let differences = ceilings.differences(&counted);
    for difference in &differences {
        eprintln!("{difference}");
    }
    if !differences.is_empty() {
        let risen = ceilings.risen(&counted);
        match &*risen {
            [] => eprintln!(
                "no sum has risen: `cargo xtask lint --write` brings ceilings.txt up to date"
            ),
            risen => eprintln!(
                "{}\n`cargo xtask lint --list` names each place",
                risen.join("\n")
            ),
        }
    }
    Ok(differences.is_empty())
}

/// Writes the counts into the table. False, and nothing is written, if a sum has risen.
pub(crate) fn write() -> Result<bool> {
    let workspace = Workspace::read()?;
    let path = table_path(&workspace);
    let (counted, _) = count(&workspace)?;
    if path.exists() {
        let risen = Table::read(&path)?.risen(&counted);
        if !risen.is_empty() {
            eprintln!(
                "{}\n`cargo xtask lint --list` names each place",
                risen.join("\n")
            );
            return Ok(false);
        }
    }
    std::fs::write(path, counted.to_string())?;
    Ok(true)
}

/// Prints each violation.
pub(crate) fn list() -> Result<bool> {
    let (_, findings) = count(&Workspace::read()?)?;
    for finding in findings {
        println!("{}: {}", finding.lint.name(), finding.place);
    }
    Ok(true)
}

fn table_path(workspace: &Workspace) -> PathBuf {
    workspace.root.join("tools/xtask/ceilings.txt")
}

/// Counts everything in all crates.
fn count(workspace: &Workspace) -> Result<(Table, Vec<Finding>)> {
    let mut table = Table::default();
    let mut all = Vec::new();
    for one in &workspace.crates {
        let mut counts = Counts::default();
        for finding in findings(one, &workspace.root)? {
            counts.add(finding.lint);
            all.push(finding);
        }
        table.insert(one.name.clone(), counts);
    }
    Ok((table, all))
}

/// Returns the violations of a crate.
fn findings(one: &Crate, root: &Path) -> Result<Vec<Finding>> {
    let mut sources = Vec::new();
    gather(&one.folder, root, &mut sources)?;
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let tokens: Vec<Vec<Token<'_>>> = sources
        .iter()
        .map(|source| tokenize(&source.text))
        .collect();

    let mut found = Vec::new();
    let mut report = |lint: Lint, place: String| found.push(Finding { lint, place });
    for (source, tokens) in sources.iter().zip(&tokens) {
        for (line, comment) in comments::unclear(tokens) {
            report(
                Lint::Comments,
                format!("{}:{line}: {comment}", source.path.display()),
            );
        }
        if let Some(lines) = files::excess(&source.text) {
            report(
                Lint::Files,
                format!("{}: {lines} lines", source.path.display()),
            );
        }
    }

    // All further lints are about the code itself, not about its tests.
    let folder = one.folder.join("src");
    let in_src: Vec<(&Source, _)> = sources
        .iter()
        .zip(&tokens)
        .filter(|(source, _)| root.join(&source.path).starts_with(&folder))
        .filter(|(source, _)| {
            source
                .path
                .extension()
                .is_some_and(|extension| extension == "rs")
        })
        .map(|(source, tokens)| (source, without_tests(tokens)))
        .collect();
    let test_modules: Vec<PathBuf> = in_src
        .iter()
        .flat_map(|(source, code)| {
            code.test_modules
                .iter()
                .map(|name| circles::child_of(&source.path).join(name))
        })
        .collect();
    let is_test = |path: &Path| {
        test_modules
            .iter()
            .any(|module| path.starts_with(module) || path.with_extension("") == *module)
    };
    let code: Vec<(&Path, &[Token<'_>])> = in_src
        .iter()
        .filter(|(source, _)| !is_test(&source.path))
        .map(|(source, code)| (&*source.path, &*code.tokens))
        .collect();

    for place in types::duplicates(&code) {
        report(Lint::Types, place);
    }
    if !one.name.starts_with("os-") {
        for place in systems::excess(&code) {
            report(Lint::Systems, place);
        }
    }
    if let Some(root_file) = &one.root_file {
        let targets: Vec<&Path> = one
            .targets
            .iter()
            .filter(|target| *target != root_file)
            .map(|target| &**target)
            .collect();
        let relative = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_owned();
        let others: Vec<PathBuf> = targets.into_iter().map(relative).collect();
        let code: Vec<(&Path, &[Token<'_>])> = code
            .iter()
            .copied()
            .filter(|(path, _)| !others.iter().any(|other| other == path))
            .collect();
        for place in circles::modules(&relative(root_file), &code) {
            report(Lint::Circles, format!("{}: {place}", one.name));
        }
    }
    Ok(found)
}

/// Reads all sources beneath a folder.
fn gather(folder: &Path, root: &Path, sources: &mut Vec<Source>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            // Another workspace's folder is not this crate's.
            if entry.file_name() != "target" && !path.join("Cargo.toml").exists() {
                gather(&path, root, sources)?;
            }
        } else if path
            .extension()
            .is_some_and(|extension| ["rs", "c", "h"].iter().any(|one| extension == *one))
        {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            sources.push(Source {
                path: path.strip_prefix(root).unwrap_or(&path).to_owned(),
                text,
            });
        }
    }
    Ok(())
}

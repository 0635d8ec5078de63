//! Checks that every command has a place in a table.

use crate::SCENARIOS;
use crate::elsewhere::{ELSEWHERE, LAB, MEASURED, NOT_HERE, TUTORIAL};
use crate::parts::Tree;
use std::collections::BTreeSet;
use taupe_lab::documents::{all_blocks, lab_arguments};
use taupe_lab::{Error, Result, ensure};

/// Kinds of blocks without commands of Linux.
const OTHER_KINDS: [&str; 7] = ["text", "c", "ini", "java", "powershell", "rust", "toml"];

/// Machines of the tutorial.
const MACHINES: [&str; 3] = ["sh alice", "sh bob", "sh carol"];

pub(crate) fn every_command_is_in_a_table() -> Result<()> {
    let tree = Tree::read()?;
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    for block in all_blocks()? {
        let place = format!("{}:{}", block.page, block.line);
        match &*block.kind {
            "sh" => {}
            kind if OTHER_KINDS.contains(&kind) => continue,
            kind if MACHINES.contains(&kind) && block.page == TUTORIAL.0 => {
                used.insert(TUTORIAL.0);
                continue;
            }
            kind => {
                problems.push(format!(
                    "{place}: a block of the kind {kind:?}: write sh for commands of Linux, or one of {OTHER_KINDS:?}"
                ));
                continue;
            }
        }
        if let Some(scenario) = SCENARIOS.iter().find(|scenario| scenario.is_of(&block)) {
            if !used.insert(scenario.name) {
                problems.push(format!(
                    "{place}: the second block that begins like this one"
                ));
            }
            continue;
        }
        for command in &block.commands {
            let entry = ELSEWHERE.iter().find(|entry| entry.command == command.text);
            let page = NOT_HERE.iter().find(|(page, _)| *page == block.page);
            let checked = match (entry, page) {
                (Some(entry), _) => {
                    used.insert(entry.command);
                    tree.check(&command.text)
                        .and_then(|()| tree.check_run(entry.command, &entry.runs))
                }
                (None, Some((page, _))) => {
                    used.insert(page);
                    tree.check(&command.text)
                }
                _ if lab_arguments(&command.text).is_some() => tree.check(&command.text),
                _ => Err(Error::unmet(
                    "it is in no table: execute its block by a scenario in \
                     tools/lab/tests/documents/main.rs, or add it to elsewhere.rs",
                )),
            };
            if let Err(error) = checked {
                problems.push(format!(
                    "{}: `{}`: {error}",
                    block.place(command),
                    command.text
                ));
            }
        }
    }
    for runs in [&LAB, &MEASURED, &TUTORIAL.1] {
        if let Err(error) = tree.check_run("", runs) {
            problems.push(error.to_string());
        }
    }
    for scenario in SCENARIOS.iter().filter(|it| !used.contains(it.name)) {
        problems.push(scenario.is_gone());
    }
    let commands = ELSEWHERE.iter().map(|entry| entry.command);
    let pages = NOT_HERE.iter().map(|(page, _)| *page);
    for entry in commands.chain(pages).chain([TUTORIAL.0]) {
        if !used.contains(entry) {
            problems.push(format!(
                "no page has `{entry}`: remove it from elsewhere.rs"
            ));
        }
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

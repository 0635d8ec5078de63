//! `cargo xtask arrows`: the drawing in ARCHITECTURE.md against the manifests.

use std::collections::BTreeSet;

use crate::drawing::{self, Arrow, Drawing};
use crate::graph::{Graph, circles};
use crate::workspace::{Result, Workspace};

const DOCUMENT: &str = "ARCHITECTURE.md";

/// Prints all differences and circles. True if there are none.
pub(crate) fn check() -> Result<bool> {
    let workspace = Workspace::read()?;
    let document = std::fs::read_to_string(workspace.root.join(DOCUMENT))?;
    let range = drawing::find(&document).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    let drawn = drawing::parse(&document[range]).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    let mut findings = differences(&drawn, &drawing::of(&workspace, &drawn.order));
    if !findings.is_empty() {
        findings.push(format!("`cargo xtask arrows --write` redraws {DOCUMENT}"));
    }
    findings.extend(forbidden(&workspace));
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(findings.is_empty())
}

/// Redraws the block. True unless something remains that no drawing mends.
pub(crate) fn write() -> Result<bool> {
    let workspace = Workspace::read()?;
    let path = workspace.root.join(DOCUMENT);
    let mut document = std::fs::read_to_string(&path)?;
    let range = drawing::find(&document).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    // An old drawing that cannot be read only loses its order.
    let before = drawing::parse(&document[range.clone()])
        .unwrap_or_default()
        .order;
    let text = drawing::render(&drawing::of(&workspace, &before), &workspace);
    document.replace_range(range, &text);
    std::fs::write(path, document)?;
    let findings = forbidden(&workspace);
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(findings.is_empty())
}

/// Returns a line for each difference between the drawing and the manifests.
fn differences(drawn: &Drawing, built: &Drawing) -> Vec<String> {
    let mut lines = Vec::new();
    let missing = |arrow: &Arrow| format!("{DOCUMENT} lacks the arrow {arrow}");
    let superfluous =
        |arrow: &Arrow| format!("{DOCUMENT} has the arrow {arrow}, which no manifest has");
    lines.extend(built.arrows.difference(&drawn.arrows).map(missing));
    lines.extend(drawn.arrows.difference(&built.arrows).map(superfluous));
    let names = |drawing: &Drawing| drawing.order.iter().cloned().collect::<BTreeSet<_>>();
    lines.extend(
        names(built)
            .difference(&names(drawn))
            .map(|name| format!("{DOCUMENT} lacks the crate {name}")),
    );
    lines.extend(
        names(drawn)
            .difference(&names(built))
            .map(|name| format!("{DOCUMENT} draws {name}, which is no crate")),
    );
    if lines.is_empty() && drawn.order != built.order {
        lines.push(format!(
            "{DOCUMENT}: an arrow goes up; the order from the top is {}",
            built.order.join(", ")
        ));
    }
    lines
}

/// Returns a line for each thing that no drawing may have: circles between crates, dependencies
/// of tests included, and arrows from the product to its tools.
fn forbidden(workspace: &Workspace) -> Vec<String> {
    let mut graph = Graph::new();
    for one in &workspace.crates {
        let names = one
            .dependencies
            .iter()
            .map(|dependency| dependency.name.clone());
        // A crate that turns on its own features for its tests depends on itself.
        graph.insert(
            one.name.clone(),
            names.filter(|name| *name != one.name).collect(),
        );
    }
    let mut lines: Vec<String> = circles(&graph)
        .into_iter()
        .map(|circle| {
            format!(
                "crates in a circle, dev-dependencies included: {}",
                circle.join(", ")
            )
        })
        .collect();
    for one in workspace.crates.iter().filter(|one| !one.is_tool) {
        for dependency in one
            .dependencies
            .iter()
            .filter(|dependency| !dependency.is_dev)
        {
            if workspace
                .crates
                .iter()
                .any(|other| other.is_tool && other.name == dependency.name)
            {
                lines.push(format!(
                    "{} is the product and depends on a tool, {}",
                    one.name, dependency.name
                ));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::differences;
    use crate::drawing::parse;

    #[test]
    fn each_difference_is_named() {
        let drawn = parse("a → b\nb → c\nc\nold").unwrap();
        let built = parse("a → b\na (linux) → c\nb\nc\nnew").unwrap();
        assert_eq!(
            differences(&drawn, &built),
            [
                "ARCHITECTURE.md lacks the arrow a (linux) → c",
                "ARCHITECTURE.md has the arrow b → c, which no manifest has",
                "ARCHITECTURE.md lacks the crate new",
                "ARCHITECTURE.md draws old, which is no crate",
            ]
        );
    }

    #[test]
    fn an_arrow_that_goes_up_is_found() {
        let drawn = parse("b\na → b").unwrap();
        let built = parse("a → b\nb").unwrap();
        assert_eq!(
            differences(&drawn, &built),
            ["ARCHITECTURE.md: an arrow goes up; the order from the top is a, b"]
        );
    }
}

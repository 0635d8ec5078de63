//! The drawing of the crates in ARCHITECTURE.md: a fenced block with one line for each crate,
//! from the top, and one more for each system on which it has further dependencies.
//!
//! ```text
//! engine → protocol, runtime
//! engine (linux) → os-linux, transparent (optional)
//! protocol → crypto
//! crypto
//! ```
//!
//! The product comes first; an empty line parts it from the tools.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use crate::workspace::{Crate, Result, Workspace};

const BEGIN: &str = "```arrows\n";
const END: &str = "\n```";

/// A dependency as the drawing has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Arrow {
    pub(crate) from: String,
    /// The only systems that have it; `None` is all of them.
    pub(crate) system: Option<String>,
    pub(crate) to: String,
    pub(crate) is_optional: bool,
}

/// A drawing, or the manifests in its form.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Drawing {
    /// The crates from the top.
    pub(crate) order: Vec<String>,
    pub(crate) arrows: BTreeSet<Arrow>,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.from)?;
        if let Some(system) = &self.system {
            write!(f, " ({system})")?;
        }
        write!(f, " → {}", self.target())
    }
}

impl Arrow {
    /// Its right side.
    fn target(&self) -> String {
        format!(
            "{}{}",
            self.to,
            if self.is_optional { " (optional)" } else { "" }
        )
    }
}

/// Returns where in a document the lines of the drawing are.
pub(crate) fn find(document: &str) -> Result<Range<usize>> {
    let begin = document.find(BEGIN).ok_or("no block ```arrows")? + BEGIN.len();
    let length = document[begin..]
        .find(END)
        .ok_or("the block ```arrows has no end")?;
    Ok(begin..begin + length)
}

/// Reads the lines of a drawing.
pub(crate) fn parse(text: &str) -> Result<Drawing> {
    let mut drawing = Drawing::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (left, right) = line.split_once('→').unwrap_or((line, ""));
        let (from, system) = note(left)?;
        if !drawing.order.contains(&from) {
            drawing.order.push(from.clone());
        }
        for target in right
            .split(',')
            .map(str::trim)
            .filter(|target| !target.is_empty())
        {
            let (to, optional) = note(target)?;
            let is_optional = match optional.as_deref() {
                None => false,
                Some("optional") => true,
                Some(other) => {
                    return Err(format!("`{line}`: `({other})` is not understood").into());
                }
            };
            drawing.arrows.insert(Arrow {
                from: from.clone(),
                system: system.clone(),
                to,
                is_optional,
            });
        }
    }
    Ok(drawing)
}

/// Splits `name (note)`.
fn note(text: &str) -> Result<(String, Option<String>)> {
    let text = text.trim();
    let Some((name, rest)) = text.split_once(" (") else {
        return Ok((text.to_owned(), None));
    };
    let inner = rest
        .strip_suffix(')')
        .ok_or_else(|| format!("`{text}`: a parenthesis is missing"))?;
    Ok((name.trim().to_owned(), Some(inner.to_owned())))
}

/// Returns the manifests' dependencies as a drawing, without those of tests. The order is that of
/// `before` as far as arrows allow.
pub(crate) fn of(workspace: &Workspace, before: &[String]) -> Drawing {
    let mut drawing = Drawing::default();
    for one in &workspace.crates {
        for dependency in one
            .dependencies
            .iter()
            .filter(|dependency| !dependency.is_dev)
        {
            drawing.arrows.insert(Arrow {
                from: one.name.clone(),
                system: dependency.system.clone(),
                to: dependency.name.clone(),
                is_optional: dependency.is_optional,
            });
        }
    }
    // A dependency on every system needs no line for one of them.
    let general: BTreeSet<Arrow> = drawing
        .arrows
        .iter()
        .filter(|arrow| arrow.system.is_none())
        .cloned()
        .collect();
    drawing.arrows.retain(|arrow| {
        arrow.system.is_none()
            || !general.contains(&Arrow {
                system: None,
                ..arrow.clone()
            })
    });
    let (tools, product): (Vec<&Crate>, Vec<&Crate>) =
        workspace.crates.iter().partition(|one| one.is_tool);
    for members in [product, tools] {
        let mut left: Vec<&str> = members.iter().map(|one| one.name.as_str()).collect();
        left.sort_by_key(|name| {
            before
                .iter()
                .position(|other| other == name)
                .unwrap_or(usize::MAX)
        });
        while !left.is_empty() {
            // The next one is the first that nothing left depends on; in a circle, the first.
            let used = |name: &str| {
                drawing
                    .arrows
                    .iter()
                    .any(|arrow| arrow.to == name && left.contains(&arrow.from.as_str()))
            };
            let at = left.iter().position(|name| !used(name)).unwrap_or(0);
            drawing.order.push(left.remove(at).to_owned());
        }
    }
    drawing
}

/// Writes a drawing's lines, with arrows below each other.
pub(crate) fn render(drawing: &Drawing, workspace: &Workspace) -> String {
    let mut lines: Vec<(String, String, bool)> = Vec::new();
    for name in &drawing.order {
        let is_tool = workspace
            .crates
            .iter()
            .any(|one| one.name == *name && one.is_tool);
        let own = || drawing.arrows.iter().filter(|arrow| arrow.from == *name);
        let systems: BTreeSet<&Option<String>> = own().map(|arrow| &arrow.system).collect();
        if systems.is_empty() {
            lines.push((name.clone(), String::new(), is_tool));
        }
        for system in systems {
            let left = match system {
                Some(system) => format!("{name} ({system})"),
                None => name.clone(),
            };
            let right: Vec<String> = own()
                .filter(|arrow| arrow.system == *system)
                .map(Arrow::target)
                .collect();
            lines.push((left, right.join(", "), is_tool));
        }
    }
    let width = lines
        .iter()
        .map(|(left, ..)| left.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    let mut in_tools = false;
    for (left, right, is_tool) in lines {
        if is_tool && !in_tools {
            text.push('\n');
        }
        in_tools = is_tool;
        match &*right {
            "" => text.push_str(&left),
            right => text.push_str(&format!("{left:width$} → {right}")),
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{find, of, parse, render};
    use crate::workspace::{Crate, Dependency, Workspace};

    fn member(name: &str, is_tool: bool, dependencies: &[(&str, Option<&str>, bool)]) -> Crate {
        Crate {
            name: name.into(),
            folder: PathBuf::new(),
            is_tool,
            root_file: None,
            targets: Vec::new(),
            dependencies: dependencies
                .iter()
                .map(|(to, system, is_dev)| Dependency {
                    name: (*to).into(),
                    is_dev: *is_dev,
                    system: system.map(Into::into),
                    is_optional: false,
                })
                .collect(),
        }
    }

    #[test]
    fn a_drawing_round_trips() {
        let workspace = Workspace {
            root: PathBuf::new(),
            crates: vec![
                member("base", false, &[("middle", None, true)]),
                member("lab", true, &[("base", None, false)]),
                member("middle", false, &[("base", None, false)]),
                member(
                    "top",
                    false,
                    &[("middle", None, false), ("base", Some("linux"), false)],
                ),
            ],
        };
        let drawing = of(&workspace, &[]);
        assert_eq!(drawing.order, ["top", "middle", "base", "lab"]);
        let text = render(&drawing, &workspace);
        assert_eq!(
            text,
            "top         → middle\ntop (linux) → base\nmiddle      → base\nbase\n\nlab         → base"
        );
        assert_eq!(parse(&text).unwrap(), drawing);
    }

    #[test]
    fn the_order_of_before_is_kept_where_arrows_allow() {
        let crates = vec![
            member("a", false, &[]),
            member("b", false, &[]),
            member("c", false, &[("b", None, false)]),
        ];
        let workspace = Workspace {
            root: PathBuf::new(),
            crates,
        };
        assert_eq!(
            of(&workspace, &["b".into(), "a".into(), "c".into()]).order,
            ["a", "c", "b"]
        );
    }

    #[test]
    fn the_block_is_found() {
        let document = "text\n```arrows\na → b\nb\n```\nmore";
        assert_eq!(&document[find(document).unwrap()], "a → b\nb");
        assert!(find("none").is_err());
    }

    #[test]
    fn unknown_notes_are_refused() {
        assert!(parse("a → b (perhaps)").is_err());
        assert!(parse("a → b (optional").is_err());
    }
}

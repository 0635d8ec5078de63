//! Top-level modules of a crate that use each other in circles.
//!
//! A module uses another one if a path in it leads there: `crate::other::…`, `super::other::…`,
//! or the name of an item that the root file has from there (`pub use other::Item`). The root
//! file is a module too: it uses those that its code names, though not those that it only hands
//! on by `pub use`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::graph::{Graph, circles};
use crate::tokens::{Kind, Token};

/// Returns a line for each module that is in a circle.
pub(super) fn modules(root_file: &Path, code: &[(&Path, &[Token<'_>])]) -> Vec<String> {
    let graph = graph(root_file, code);
    circles(&graph)
        .into_iter()
        .flat_map(|circle| {
            let names = circle.join(", ");
            circle
                .iter()
                .map(|module| format!("{module} is in the circle of {names}"))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the folder in which a file's child modules are.
pub(super) fn child_of(file: &Path) -> PathBuf {
    match file.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") | None => file.parent().unwrap_or(file).to_owned(),
        Some(_) => file.with_extension(""),
    }
}

fn graph(root_file: &Path, code: &[(&Path, &[Token<'_>])]) -> Graph {
    let folder = root_file.parent().unwrap_or(root_file);
    let root = root_file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("root")
        .to_owned();
    let module_of = |path: &Path| -> Vec<String> {
        let path = if path == root_file {
            folder.to_owned()
        } else {
            child_of(path)
        };
        let parts = path
            .strip_prefix(folder)
            .map(Path::to_owned)
            .unwrap_or_default();
        parts
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect()
    };
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for (path, _) in code.iter().filter(|(path, _)| *path != root_file) {
        if let Some(top) = module_of(path).first() {
            names.insert(top.clone(), top.clone());
        }
    }
    let modules: BTreeSet<String> = names.keys().cloned().collect();
    // Names that the root file has by `use` are those of the modules they come from.
    if let Some((_, tokens)) = code.iter().find(|(path, _)| *path == root_file) {
        for (module, name) in imports(tokens, &modules) {
            names.entry(name).or_insert(module);
        }
    }

    let mut graph = Graph::new();
    for (path, tokens) in code {
        let module = module_of(path);
        let own = module.first().unwrap_or(&root).clone();
        let edges = graph.entry(own.clone()).or_default();
        let mut used = uses(tokens, &module);
        if *path == root_file {
            used.extend(mentions(tokens, &modules));
        }
        let target = |name: String| names.get(&name).cloned().unwrap_or_else(|| root.clone());
        edges.extend(used.into_iter().map(target).filter(|target| *target != own));
    }
    graph
}

/// Returns the names in the crate's root that paths with `crate` or `super` lead to.
fn uses(tokens: &[Token<'_>], module: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    // Depths of braces at which inline modules began.
    let (mut depth, mut inline) = (0_usize, Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Punctuation('{') => {
                if at >= 2 && tokens[at - 2].is_word("mod") {
                    inline.push(depth);
                }
                depth += 1;
            }
            Kind::Punctuation('}') => {
                depth = depth.saturating_sub(1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
            }
            Kind::Identifier("crate") if !continues_path(tokens, at) => {
                targets(&tokens[at + 1..], 0, &mut found)
            }
            Kind::Identifier("super") if !continues_path(tokens, at) => {
                targets(&tokens[at..], module.len() + inline.len(), &mut found);
            }
            _ => {}
        }
    }
    found
}

fn continues_path(tokens: &[Token<'_>], at: usize) -> bool {
    at >= 2 && tokens[at - 1].is(':') && tokens[at - 2].is(':')
}

/// Adds the names in the root that a path leads to: the rest of `crate`, or one that begins with
/// `super` in a module of that depth.
fn targets(tokens: &[Token<'_>], depth: usize, found: &mut BTreeSet<String>) {
    let rest = match tokens {
        [a, b, rest @ ..] if a.is(':') && b.is(':') => rest,
        rest => rest,
    };
    match rest.first().map(|token| token.kind) {
        Some(Kind::Identifier("super")) => targets(&rest[1..], depth.saturating_sub(1), found),
        Some(Kind::Identifier(name)) if depth == 0 => drop(found.insert(name.to_owned())),
        Some(Kind::Punctuation('{')) => {
            let mut level = 0;
            for (at, token) in rest.iter().enumerate() {
                match token.kind {
                    Kind::Punctuation('{') => level += 1,
                    Kind::Punctuation('}') => level -= 1,
                    _ => {}
                }
                if level == 0 {
                    break;
                }
                if level == 1 && (token.is('{') || token.is(',')) && !rest[at + 1].is('}') {
                    targets(&rest[at + 1..], depth, found);
                }
            }
        }
        // `super::*` and `use crate::*` are about everything in the root.
        Some(Kind::Punctuation('*')) if depth == 0 => drop(found.insert("*".to_owned())),
        _ => {}
    }
}

/// Returns the modules that the root file's code names, `mod` and visible `use` left out.
fn mentions(tokens: &[Token<'_>], modules: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_use = false;
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            // `pub use` and `pub(crate) use`
            Kind::Identifier("use") => {
                in_use = at >= 1 && (tokens[at - 1].is_word("pub") || tokens[at - 1].is(')'))
            }
            Kind::Punctuation(';') => in_use = false,
            Kind::Identifier(name)
                if !in_use
                    && modules.contains(name)
                    && !continues_path(tokens, at)
                    && matches!(&tokens[at + 1..], [a, b, ..] if a.is(':') && b.is(':')) =>
            {
                found.insert(name.to_owned());
            }
            _ => {}
        }
    }
    found
}

/// Returns the names that the root file's `use` declarations bring in from modules, each with its
/// module.
fn imports(tokens: &[Token<'_>], modules: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at].is_word("use") {
            at += 1;
            continue;
        }
        let length = tokens[at..]
            .iter()
            .position(|token| token.is(';'))
            .unwrap_or(tokens.len() - at);
        let words: Vec<(usize, &str)> = tokens[at..at + length]
            .iter()
            .enumerate()
            .filter_map(|(place, token)| match token.kind {
                Kind::Identifier(word) if !matches!(word, "use" | "crate" | "self") => {
                    Some((place, word))
                }
                _ => None,
            })
            .collect();
        if let Some((_, module)) = words.first().filter(|(_, first)| modules.contains(*first)) {
            // The last of each path: no `::` follows.
            let is_last =
                |place: usize| !tokens.get(at + place + 1).is_some_and(|next| next.is(':'));
            let names = words
                .iter()
                .filter(|(place, word)| is_last(*place) && *word != "as");
            found.extend(names.map(|(_, name)| ((*module).to_owned(), (*name).to_owned())));
        }
        at += length;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::modules;
    use crate::tokens::tokenize;

    /// The modules in circles of a crate with these files.
    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let tokens: Vec<_> = files.iter().map(|(_, text)| tokenize(text)).collect();
        let code: Vec<_> = files
            .iter()
            .zip(&tokens)
            .map(|((path, _), tokens)| (Path::new(path), &**tokens))
            .collect();
        let lines = modules(Path::new("src/lib.rs"), &code);
        lines
            .into_iter()
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn modules_that_use_each_other_are_found() {
        assert_eq!(
            circles(&[
                ("src/lib.rs", "mod a; mod b; mod c; pub use a::A;"),
                ("src/a.rs", "use crate::b::B;"),
                ("src/b.rs", "use crate::{A, c::C};"),
                ("src/c.rs", ""),
            ]),
            ["a", "b"]
        );
    }

    #[test]
    fn super_resolves_from_its_own_depth() {
        let lib = ("src/lib.rs", "mod a; mod b;");
        let b = ("src/b.rs", "use super::a::A;");
        assert_eq!(
            circles(&[lib, b, ("src/a/inner.rs", "use super::super::b::B;")]),
            ["a", "b"]
        );
        assert_eq!(
            circles(&[lib, b, ("src/a.rs", "mod b { use super::c; }")]),
            Vec::<String>::new()
        );
        assert_eq!(
            circles(&[
                lib,
                b,
                ("src/a/mod.rs", "mod x { use super::super::{y, b}; }")
            ]),
            ["a", "b"]
        );
    }

    #[test]
    fn the_root_is_in_a_circle_only_by_its_own_code() {
        let a = ("src/a.rs", "use crate::Shared;");
        assert!(
            circles(&[("src/lib.rs", "mod a; pub struct Shared; pub use a::A;"), a]).is_empty()
        );
        assert_eq!(
            circles(&[
                ("src/lib.rs", "mod a; pub struct Shared; fn f() { a::g() }"),
                a
            ]),
            ["a", "lib.rs"]
        );
    }
}

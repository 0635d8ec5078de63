//! Types of one crate that share a name.

use std::collections::BTreeMap;
use std::path::Path;

use crate::tokens::{Kind, Token};

/// Returns a line for each type that is visible outside its module and has the name of one before.
pub(super) fn duplicates(code: &[(&Path, &[Token<'_>])]) -> Vec<String> {
    let mut first: BTreeMap<&str, String> = BTreeMap::new();
    let mut found = Vec::new();
    for (path, tokens) in code {
        for (line, name) in definitions(tokens) {
            let place = format!("{}:{line}", path.display());
            match first.get(name) {
                Some(other) => found.push(format!("{place}: {name} is also at {other}")),
                None => drop(first.insert(name, place)),
            }
        }
    }
    found
}

/// Returns the definitions with any visibility.
fn definitions<'t>(tokens: &[Token<'t>]) -> Vec<(usize, &'t str)> {
    let mut found = Vec::new();
    for (at, token) in tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.is_word("pub"))
    {
        let mut rest = &tokens[at + 1..];
        if rest.first().is_some_and(|next| next.is('('))
            && let Some(end) = rest.iter().position(|next| next.is(')'))
        {
            rest = &rest[end + 1..];
        }
        if let [keyword, name, ..] = rest
            && let (
                Kind::Identifier("struct" | "enum" | "union" | "trait" | "type"),
                Kind::Identifier(name),
            ) = (keyword.kind, name.kind)
        {
            found.push((token.line, name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::duplicates;
    use crate::tokens::tokenize;

    #[test]
    fn repeated_type_names_are_found() {
        let a = tokenize("pub struct A; pub(crate) enum B {} struct C; pub fn d() {}");
        let b = tokenize("pub(in crate::x) type A = u8; pub trait E {} struct B; struct C;");
        let found = duplicates(&[(Path::new("a.rs"), &a), (Path::new("b.rs"), &b)]);
        assert_eq!(found, ["b.rs:1: A is also at a.rs:1"]);
    }
}

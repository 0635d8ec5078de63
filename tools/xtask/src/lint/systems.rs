//! Conditions on the operating system that are spread over a crate.

use std::path::Path;

use crate::tokens::{Kind, Token};

/// Names in conditions that ask for the operating system.
const NAMES: [&str; 4] = ["target_os", "target_family", "windows", "unix"];

/// Returns a line for each file with such conditions, but for the first one: a crate may have
/// them in one place.
pub(super) fn excess(code: &[(&Path, &[Token<'_>])]) -> Vec<String> {
    let places = code
        .iter()
        .filter_map(|(path, tokens)| match &*conditions(tokens) {
            [] => None,
            [first, ..] => Some(format!("{}:{first}", path.display())),
        });
    places.skip(1).collect()
}

/// Returns the lines of `cfg`, `cfg!` and `cfg_attr` that ask for the operating system.
fn conditions(tokens: &[Token<'_>]) -> Vec<usize> {
    let mut lines = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if !matches!(token.kind, Kind::Identifier("cfg" | "cfg_attr")) {
            continue;
        }
        let mut rest = &tokens[at + 1..];
        if rest.first().is_some_and(|next| next.is('!')) {
            rest = &rest[1..];
        }
        if !rest.first().is_some_and(|next| next.is('(')) {
            continue;
        }
        let mut depth = 0;
        for next in rest {
            match next.kind {
                Kind::Punctuation('(') => depth += 1,
                Kind::Punctuation(')') => depth -= 1,
                Kind::Identifier(name) if NAMES.contains(&name) => {
                    lines.push(token.line);
                    break;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{conditions, excess};
    use crate::tokens::tokenize;

    #[test]
    fn conditions_on_the_system_are_found() {
        let text = "#[cfg(target_os = \"linux\")] a;\nif cfg!(windows) {}\n#[cfg(all(feature = \"x\", not(unix)))] b;\n\
            #[cfg(feature = \"windows\")] c; #[cfg(target_arch = \"x86\")] windows(unix);";
        assert_eq!(conditions(&tokenize(text)), [1, 2, 3]);
    }

    #[test]
    fn one_place_is_allowed() {
        let (a, b) = (
            tokenize("#[cfg(unix)] #[cfg(windows)]"),
            tokenize("\n#[cfg(unix)]"),
        );
        assert_eq!(
            excess(&[(Path::new("a.rs"), &a), (Path::new("b.rs"), &b)]),
            ["b.rs:2"]
        );
    }
}

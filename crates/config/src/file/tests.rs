use std::path::Path;

use super::*;

mod accept;
mod corpus;
mod post_quantum;
mod print;
mod refuse;
mod strip;
mod transparent;
mod wg;
mod words;

/// The private key of most tests, and two public keys.
const OWN: &str = "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICEg=";
const PEER: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const OTHER: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

/// The name of a kind, as its `Debug` begins.
fn name(diagnostic: &Diagnostic) -> String {
    let text = format!("{:?}", diagnostic.kind);
    text.chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect()
}

fn quick(text: &str) -> Parsed {
    parse(text.as_bytes(), Dialect::Taupe)
}

/// The file, of which nothing is worth telling.
fn clean(text: &str) -> File {
    let parsed = quick(text);
    assert_eq!(parsed.diagnostics, [], "{text}");
    parsed.file.expect("no diagnostics, but no file")
}

/// A configuration without files of keys.
fn no_files(_: &str) -> Result<KeyFile, KeyFileProblem> {
    Err(KeyFileProblem::NotHere)
}

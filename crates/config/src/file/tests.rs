use std::path::Path;

use super::*;

mod accept;
mod addresses;
mod corpus;
mod names;
mod post_quantum;
mod print;
mod refuse;
mod strip;
mod transparent;
mod unknown_keys;
mod wg;

/// The private key of most tests, and two public keys.
const OWN: &str = "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICEg=";
const PEER: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const OTHER: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

/// Returns the name of a diagnostic's kind.
fn name(diagnostic: &Diagnostic) -> String {
    let text = format!("{:?}", diagnostic.kind);
    text.chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect()
}

fn quick(text: &str) -> Parsed {
    parse(text.as_bytes(), Dialect::Taupe)
}

/// Returns the file, which must have no diagnostics.
fn clean(text: &str) -> File {
    let parsed = quick(text);
    assert_eq!(parsed.diagnostics, [], "{text}");
    parsed.file.expect("no diagnostics, but no file")
}

/// Reader for a configuration without key files.
fn no_files(_: &str) -> Result<KeyFile, KeyFileProblem> {
    Err(KeyFileProblem::NoFileAccess)
}

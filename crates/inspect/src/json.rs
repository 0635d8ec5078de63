//! What is printed with `--json`.

use serde::Serialize;

/// One document, for people too, with a line feed at its end.
pub fn text(value: &impl Serialize) -> String {
    // Nothing that is printed has a map whose keys are no strings, which alone can fail.
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    format!("{text}\n")
}

/// One document in a line.
pub fn line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    format!("{text}\n")
}

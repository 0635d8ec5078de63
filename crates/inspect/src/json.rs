//! JSON output of commands (`--json`).

use serde::Serialize;

/// Formats a value as an indented JSON document that ends with a line feed.
#[must_use]
pub fn text(value: &impl Serialize) -> String {
    // Serialisation only fails for maps whose keys are not strings, and no document has such a map.
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    format!("{text}\n")
}

/// Formats a value as a JSON document on one line.
#[must_use]
pub fn line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    format!("{text}\n")
}

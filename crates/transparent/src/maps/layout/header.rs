//! Reads constants from the text of C headers: `#define NAME number` and enumerations.

use std::collections::HashMap;

pub(super) struct Constants(HashMap<String, u64>);

impl Constants {
    pub(super) fn parse(header: &str) -> Self {
        let text = without_comments(header);
        let mut constants = Self(HashMap::new());
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if let (Some("#define"), Some(name), Some(number), None) =
                (words.next(), words.next(), words.next(), words.next())
                && let Some(number) = number_of(number)
            {
                constants.0.insert(name.into(), number);
            }
        }
        // `enum name {` and `enum {`, up to the next brace.
        for part in text.split("enum ").skip(1) {
            let Some((name, rest)) = part.split_once('{') else {
                continue;
            };
            if name.contains([';', '(', ')', '=']) {
                continue;
            }
            let body = rest.split('}').next().unwrap_or_default();
            let mut next = 0;
            for entry in body.split(',').map(str::trim).filter(|it| !it.is_empty()) {
                let (name, value) = match entry.split_once('=') {
                    Some((name, value)) => (name.trim(), constants.value(value)),
                    None => (entry, next),
                };
                constants.0.insert(name.into(), value);
                next = value + 1;
            }
        }
        constants
    }

    pub(super) fn get(&self, name: &str) -> u64 {
        let found = self.0.get(name);
        *found.unwrap_or_else(|| panic!("the header has no {name}"))
    }

    /// Evaluates numbers, names and shifts joined by `|`.
    fn value(&self, expression: &str) -> u64 {
        let term = |text: &str| text.parse().unwrap_or_else(|_| self.get(text));
        let parts = expression.split('|').map(|part| {
            let mut terms = part.split("<<").map(|text| term(text.trim()));
            let first = terms.next().unwrap_or_default();
            terms.fold(first, |value, bits| value << bits)
        });
        parts.fold(0, |value, part| value | part)
    }
}

/// Reads a number as C writes it: decimal or hexadecimal, complemented or in `htonl()`.
fn number_of(text: &str) -> Option<u64> {
    if let Some(number) = in_parentheses(text, "htonl") {
        return number_of(number);
    }
    if let Some(number) = in_parentheses(text, "") {
        return number_of(number);
    }
    if let Some(number) = text.strip_prefix('~') {
        return number_of(number).map(|number| !number);
    }
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn in_parentheses<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let text = text.strip_prefix(before)?;
    text.strip_prefix('(')?.strip_suffix(')')
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut rest = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        rest.push_str(part.split_once("*/").map_or("", |(_, after)| after));
    }
    rest
}

//! Faults in a function of C.

use super::c_source::{CFunction, CSource};

/// A text in which a part of the original is replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CMutant {
    /// The fault and its number among those of the function that look alike, from 1.
    pub(super) description: String,
    start: usize,
    end: usize,
    with: String,
}

impl CMutant {
    /// Returns the file's text with the fault.
    pub(super) fn apply(&self, text: &str) -> String {
        format!("{}{}{}", &text[..self.start], self.with, &text[self.end..])
    }
}

/// Operators and constants with their replacements.
const REPLACEMENTS: [(&str, &str); 45] = [
    ("==", "!="),
    ("!=", "=="),
    ("<", "<="),
    ("<=", "<"),
    (">", ">="),
    (">=", ">"),
    ("&&", "||"),
    ("||", "&&"),
    ("true", "false"),
    ("false", "true"),
    ("ALLOW", "REFUSE"),
    ("REFUSE", "ALLOW"),
    ("TUNNEL", "DIRECT"),
    ("DIRECT", "TUNNEL"),
    ("LEAVING", "DIRECT"),
    ("EXEMPT", "DIRECT"),
    ("UNDETERMINED", "DIRECT"),
    ("UNCLASSIFIED", "DIRECT"),
    ("CLASS_DIRECT", "CLASS_TUNNEL"),
    ("CLASS_TUNNEL", "CLASS_DIRECT"),
    ("CLASS_REFUSE", "CLASS_TUNNEL"),
    ("CLASS_DROP", "CLASS_DIRECT"),
    ("RULE_ALLOW", "RULE_DISALLOW"),
    ("RULE_DISALLOW", "RULE_ALLOW"),
    ("RULE_EXEMPT", "RULE_ALLOW"),
    ("RULE_UNDETERMINED", "RULE_DISALLOW"),
    ("TC_ACT_SHOT", "TC_ACT_UNSPEC"),
    ("TC_ACT_UNSPEC", "TC_ACT_SHOT"),
    ("NF_DROP", "NF_ACCEPT"),
    ("NF_ACCEPT", "NF_DROP"),
    ("EGRESS", "INGRESS"),
    ("INGRESS", "EGRESS"),
    ("LOCK_ALL", "LOCK_OFF"),
    ("LOCK_OFF", "LOCK_ALL"),
    ("SENDER_ANY", "SENDER_CURRENT"),
    ("SENDER_CURRENT", "SENDER_ANY"),
    ("SENDER_UNKNOWN", "SENDER_ANY"),
    ("NO_RESOLVER", "RESOLVER_FOUND"),
    ("RESOLVER_FOUND", "NO_RESOLVER"),
    ("DNS_V4", "DNS_V6"),
    ("DNS_V6", "DNS_V4"),
    ("AF_INET", "AF_INET6"),
    ("AF_INET6", "AF_INET"),
    ("IPPROTO_TCP", "IPPROTO_UDP"),
    ("IPPROTO_UDP", "IPPROTO_TCP"),
];

/// Words with which a statement begins that is not deleted.
const KEPT: [&str; 11] = [
    "return", "if", "for", "while", "do", "switch", "case", "default", "break", "continue", "else",
];

/// Returns the faults that are planted in a function.
pub(super) fn planted(source: &CSource<'_>, function: &CFunction) -> Vec<CMutant> {
    let mut mutants: Vec<CMutant> = Vec::new();
    let mut add = |plain: String, start: usize, end: usize, with: &str| {
        let alike = mutants.iter();
        let number = alike
            .filter(|it| without_number(&it.description) == plain)
            .count()
            + 1;
        mutants.push(CMutant {
            description: format!("{plain} #{number}"),
            start,
            end,
            with: with.to_owned(),
        });
    };
    for at in function.body + 1..function.tokens.end {
        let (token, span) = (source.token(at), source.tokens[at].clone());
        let replacement = REPLACEMENTS.iter().find(|(from, _)| *from == token);
        if let Some((from, to)) = replacement {
            add(format!("{from} becomes {to}"), span.start, span.end, to);
        }
        if token == "!" {
            add("! is left out".to_owned(), span.start, span.end, "");
        }
        if let Some(value) = number(token) {
            let with = (value + 1).to_string();
            add(
                format!("{token} becomes {with}"),
                span.start,
                span.end,
                &with,
            );
        }
        if let Some(end) = deletable(source, function, at) {
            let words: Vec<&str> = (at..end).map(|it| source.token(it)).collect();
            let end = source.tokens[end].start;
            add(format!("without {}", words.join(" ")), span.start, end, "");
        }
    }
    mutants
}

fn without_number(description: &str) -> &str {
    description
        .rsplit_once(" #")
        .map_or(description, |(plain, _)| plain)
}

/// Returns the value of a literal.
fn number(token: &str) -> Option<u64> {
    let plain = token.trim_end_matches(['u', 'U', 'l', 'L']);
    match plain.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => plain.parse().ok(),
    }
    .filter(|value| *value < u64::MAX)
}

/// Returns the semicolon of a call or an assignment that begins here.
fn deletable(source: &CSource<'_>, function: &CFunction, at: usize) -> Option<usize> {
    let before = source.token(at - 1);
    let is_start = matches!(before, ";" | "{" | "}" | "else" | ":")
        || before == ")" && is_after_condition(source, function, at - 1);
    let first = source.token(at);
    let is_name = first.starts_with(|it: char| it.is_alphabetic() || it == '_') || first == "*";
    if !is_start || !is_name || KEPT.contains(&first) {
        return None;
    }
    let mut depth = 0;
    let mut is_assigned = false;
    let mut end = at;
    loop {
        match source.token(end) {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            "{" | "}" | "" => return None,
            ";" if depth == 0 => break,
            "=" | "|=" | "&=" | "+=" | "-=" | "^=" | "++" | "--" if depth == 0 => {
                is_assigned = true
            }
            ":" if depth == 0 => return None,
            _ => {}
        }
        end += 1;
    }
    let second = source.token(at + 1);
    let is_call = second == "(" && source.token(end - 1) == ")";
    // A declaration has a type before the name.
    let is_place = matches!(
        second,
        "->" | "." | "[" | "=" | "|=" | "&=" | "+=" | "-=" | "^=" | "++" | "--"
    ) || first == "*" && before != "=";
    (is_call || is_assigned && is_place).then_some(end)
}

/// Returns true if a parenthesis closes the condition of `if`, `for` or `while`.
fn is_after_condition(source: &CSource<'_>, function: &CFunction, close: usize) -> bool {
    let mut depth = 0;
    for at in (function.body..=close).rev() {
        match source.token(at) {
            ")" => depth += 1,
            "(" if depth == 1 => return matches!(source.token(at - 1), "if" | "for" | "while"),
            "(" => depth -= 1,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::planted;
    use crate::bpf_mutants::c_source::CSource;

    #[test]
    fn faults_are_tokens_and_not_text() {
        let text = "int f(struct a *b)\n{\n\tu32 c = 7; /* ALLOW == 1 */\n\tif (!b && c == 0x10)\n\t\tg(b);\n\
            \tb->d = c;\n\treturn ALLOW;\n}\n";
        let source = CSource::new(text);
        let functions = source.functions();
        let mutants = planted(&source, &functions[0]);
        let found: Vec<&str> = mutants.iter().map(|it| it.description.as_str()).collect();
        let expected = [
            "7 becomes 8 #1",
            "! is left out #1",
            "&& becomes || #1",
            "== becomes != #1",
            "0x10 becomes 17 #1",
            "without g ( b ) #1",
            "without b -> d = c #1",
            "ALLOW becomes REFUSE #1",
        ];
        assert_eq!(found, expected);
        assert!(mutants[5].apply(text).contains("== 0x10)\n\t\t;\n"));
        assert!(mutants[7].apply(text).contains("return REFUSE;"));
    }
}

//! Tokens and functions of a C file, with their places in the text.

use std::ops::Range;

/// A token's bytes in the text.
pub(super) type Span = Range<usize>;

/// A function of a C file, with numbers of tokens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CFunction {
    pub(super) name: String,
    /// From the beginning of the declaration to the closing brace.
    pub(super) tokens: Range<usize>,
    /// The opening brace of the body.
    pub(super) body: usize,
}

/// A C file without comments and lines of the preprocessor.
pub(super) struct CSource<'t> {
    pub(super) text: &'t str,
    pub(super) tokens: Vec<Span>,
}

/// Operators of more than one character, longest first.
const LONG: [&str; 21] = [
    "<<=", ">>=", "...", "==", "!=", "<=", ">=", "&&", "||", "->", "++", "--", "<<", ">>", "+=",
    "-=", "*=", "|=", "&=", "^=", "/=",
];

impl<'t> CSource<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let mut tokens = Vec::new();
        let mut at = 0;
        let mut is_line_start = true;
        while let Some(next) = text[at..].chars().next() {
            let rest = &text[at..];
            if next.is_whitespace() {
                is_line_start |= next == '\n';
                at += next.len_utf8();
                continue;
            }
            let length = if rest.starts_with("/*") {
                at += rest.find("*/").map_or(rest.len(), |end| end + 2);
                continue;
            } else if rest.starts_with("//") {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            } else if next == '#' && is_line_start {
                at += directive_length(rest);
                continue;
            } else if next == '"' || next == '\'' {
                quoted_length(rest, next)
            } else if next.is_alphanumeric() || next == '_' {
                let is_word = |it: char| it.is_alphanumeric() || it == '_';
                rest.find(|it| !is_word(it)).unwrap_or(rest.len())
            } else {
                let long = LONG.iter().find(|it| rest.starts_with(**it));
                long.map_or(next.len_utf8(), |it| it.len())
            };
            tokens.push(at..at + length);
            at += length;
            is_line_start = false;
        }
        Self { text, tokens }
    }

    pub(super) fn token(&self, number: usize) -> &'t str {
        self.tokens
            .get(number)
            .map_or("", |span| &self.text[span.clone()])
    }

    /// Returns the functions that have a body.
    pub(super) fn functions(&self) -> Vec<CFunction> {
        let mut functions = Vec::new();
        let mut start = 0;
        let mut at = 0;
        while at < self.tokens.len() {
            match self.token(at) {
                "{" => {
                    let end = self.closing(at);
                    if let Some(name) = self.function_name(start, at) {
                        functions.push(CFunction {
                            name: name.to_owned(),
                            tokens: start..end + 1,
                            body: at,
                        });
                        start = end + 1;
                    }
                    at = end;
                }
                ";" => start = at + 1,
                _ => {}
            }
            at += 1;
        }
        functions
    }

    /// Returns the name in a function's declaration, which is before the last parentheses.
    fn function_name(&self, start: usize, brace: usize) -> Option<&'t str> {
        let mut depth = 0;
        for at in (start..brace).rev() {
            match self.token(at) {
                ")" => depth += 1,
                "(" if depth == 1 => return Some(self.token(at.checked_sub(1)?)),
                "(" => depth -= 1,
                _ if depth == 0 => return None,
                _ => {}
            }
        }
        None
    }

    /// Returns the brace that closes another.
    fn closing(&self, open: usize) -> usize {
        let mut depth = 0;
        for at in open..self.tokens.len() {
            match self.token(at) {
                "{" => depth += 1,
                "}" if depth == 1 => return at,
                "}" => depth -= 1,
                _ => {}
            }
        }
        self.tokens.len() - 1
    }
}

/// A line of the preprocessor, with the lines that continue it.
fn directive_length(text: &str) -> usize {
    let mut length = 0;
    for line in text.split_inclusive('\n') {
        length += line.len();
        if !line.trim_end().ends_with('\\') {
            break;
        }
    }
    length
}

fn quoted_length(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, next) in text.char_indices().skip(1) {
        match next {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if next == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::CSource;

    #[test]
    fn functions_are_found_and_structures_are_not() {
        let text = "#define F(x) \\\n\t{ x }\nstruct a { int b; };\nint c(void);\n/* d( */\n\
            SEC(\"x\")\nstatic u32 e(struct f *g, u32 h)\n{\n\tif (h) { return '{'; }\n}\nint i[] = { 1 };\n\
            enum j k(void) { return 0; }\n";
        let source = CSource::new(text);
        let functions = source.functions();
        let names: Vec<&str> = functions.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["e", "k"]);
        assert_eq!(source.token(functions[0].tokens.start), "SEC");
        assert_eq!(source.token(functions[0].body), "{");
    }

    #[test]
    fn operators_are_one_token() {
        let source = CSource::new("a<=b&&!c->d||e>>=1");
        let tokens: Vec<&str> = (0..source.tokens.len())
            .map(|at| source.token(at))
            .collect();
        let expected = [
            "a", "<=", "b", "&&", "!", "c", "->", "d", "||", "e", ">>=", "1",
        ];
        assert_eq!(tokens, expected);
    }
}

//! A tokenizer for Rust and C that is good enough to count in: identifiers, punctuation,
//! comments; literals without their contents.

/// A token and the line where it begins, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Token<'t> {
    pub(crate) line: usize,
    pub(crate) kind: Kind<'t>,
}

/// The kinds of token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind<'t> {
    Identifier(&'t str),
    Punctuation(char),
    Literal,
    /// A comment with its marker.
    Comment {
        text: &'t str,
        /// False if code stands before it on the line.
        is_first: bool,
    },
}

impl Token<'_> {
    pub(crate) fn is(&self, punctuation: char) -> bool {
        self.kind == Kind::Punctuation(punctuation)
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Identifier(word)
    }
}

/// Splits a text into tokens.
pub(crate) fn tokenize(text: &str) -> Vec<Token<'_>> {
    let mut reader = Reader {
        text,
        at: 0,
        line: 1,
    };
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut last_code_line = 0;
    loop {
        reader.skip(|c| c.is_whitespace());
        let line = reader.line;
        let Some(first) = reader.peek(0) else {
            return tokens;
        };
        let begin = reader.at;
        let kind = if reader.rest().starts_with("//") {
            reader.skip(|c| c != '\n');
            Kind::Comment {
                text: &text[begin..reader.at],
                is_first: last_code_line != line,
            }
        } else if reader.rest().starts_with("/*") {
            reader.block_comment();
            Kind::Comment {
                text: &text[begin..reader.at],
                is_first: last_code_line != line,
            }
        } else if first == '"' {
            reader.string();
            Kind::Literal
        } else if first == '\'' {
            reader.quote();
            Kind::Literal
        } else if first.is_ascii_digit() {
            reader.skip(|c| c.is_alphanumeric() || c == '_');
            Kind::Literal
        } else if first.is_alphabetic() || first == '_' {
            reader.skip(|c| c.is_alphanumeric() || c == '_');
            let word = &text[begin..reader.at];
            if matches!(word, "r" | "br" | "cr") && reader.raw_string() {
                Kind::Literal
            } else {
                Kind::Identifier(word)
            }
        } else {
            reader.advance();
            Kind::Punctuation(first)
        };
        if !matches!(kind, Kind::Comment { .. }) {
            last_code_line = reader.line;
        }
        tokens.push(Token { line, kind });
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    line: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest().chars().nth(ahead)
    }

    fn advance(&mut self) -> Option<char> {
        let next = self.peek(0)?;
        self.at += next.len_utf8();
        if next == '\n' {
            self.line += 1;
        }
        Some(next)
    }

    fn skip(&mut self, while_true: impl Fn(char) -> bool) {
        while self.peek(0).is_some_and(&while_true) {
            self.advance();
        }
    }

    /// A comment in `/*`, which nests in Rust.
    fn block_comment(&mut self) {
        let mut depth = 0;
        loop {
            if self.rest().starts_with("/*") {
                depth += 1;
                self.advance();
            } else if self.rest().starts_with("*/") {
                depth -= 1;
                self.advance();
            }
            if self.advance().is_none() || depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.advance();
        while let Some(next) = self.advance() {
            match next {
                '"' => return,
                '\\' => drop(self.advance()),
                _ => {}
            }
        }
    }

    /// A character, or a lifetime.
    fn quote(&mut self) {
        self.advance();
        if self.peek(0) == Some('\\') {
            self.advance();
            self.advance();
            self.skip(|c| c != '\'' && c != '\n');
            self.advance();
        } else if self.peek(1) == Some('\'') {
            self.advance();
            self.advance();
        } else {
            self.skip(|c| c.is_alphanumeric() || c == '_');
        }
    }

    /// The rest of a raw string whose prefix was just read. False if it is none.
    fn raw_string(&mut self) -> bool {
        let hashes = self.rest().chars().take_while(|c| *c == '#').count();
        if self.peek(hashes) != Some('"') {
            return false;
        }
        for _ in 0..=hashes {
            self.advance();
        }
        let end = format!("\"{}", "#".repeat(hashes));
        while !self.rest().starts_with(&end) && self.advance().is_some() {}
        for _ in 0..=hashes {
            self.advance();
        }
        true
    }
}

/// A file's code without comments and without items that only tests have.
pub(crate) struct Code<'t> {
    pub(crate) tokens: Vec<Token<'t>>,
    /// Modules in files of their own that only tests have.
    pub(crate) test_modules: Vec<&'t str>,
}

/// Removes comments and all items that `#[cfg(test)]` stands before.
pub(crate) fn without_tests<'t>(tokens: &[Token<'t>]) -> Code<'t> {
    let tokens: Vec<Token<'t>> = tokens
        .iter()
        .copied()
        .filter(|token| !matches!(token.kind, Kind::Comment { .. }))
        .collect();
    let mut code = Code {
        tokens: Vec::new(),
        test_modules: Vec::new(),
    };
    let mut at = 0;
    while at < tokens.len() {
        let Some(end) = test_attribute(&tokens[at..]) else {
            code.tokens.push(tokens[at]);
            at += 1;
            continue;
        };
        at += end;
        let item = &tokens[at..];
        let length = item_length(item);
        if let Some(name) =
            item[..length]
                .windows(3)
                .find_map(|three| match (three[0].kind, three[1].kind) {
                    (Kind::Identifier("mod"), Kind::Identifier(name)) if three[2].is(';') => {
                        Some(name)
                    }
                    _ => None,
                })
        {
            code.test_modules.push(name);
        }
        at += length;
    }
    code
}

/// The length of a `#[cfg(test)]` at the beginning, `#[cfg(all(test, …))]` included.
fn test_attribute(tokens: &[Token<'_>]) -> Option<usize> {
    if tokens.len() < 4 || !tokens[0].is('#') || !tokens[1].is('[') || !tokens[2].is_word("cfg") {
        return None;
    }
    let end = tokens.iter().position(|token| token.is(']'))?;
    let has = |word: &str| tokens[..end].iter().any(|token| token.is_word(word));
    (has("test") && !has("not") && !has("any")).then_some(end + 1)
}

/// The length of the item at the beginning: up to its `;` or the end of its block.
fn item_length(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Punctuation('(' | '[' | '{') => depth += 1,
            Kind::Punctuation(')' | ']' | '}') if depth == 0 => return at,
            Kind::Punctuation('}') if depth == 1 => return at + 1,
            Kind::Punctuation(')' | ']' | '}') => depth -= 1,
            Kind::Punctuation(';') if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::{Kind, tokenize, without_tests};

    fn words(text: &str) -> Vec<&str> {
        let word = |kind| match kind {
            Kind::Identifier(word) => Some(word),
            _ => None,
        };
        tokenize(text)
            .into_iter()
            .filter_map(|token| word(token.kind))
            .collect()
    }

    #[test]
    fn literals_and_comments_are_skipped() {
        assert_eq!(
            words(r##"a "b // c" d 'e' '\'' r#"f " g"# /* h /* i */ j */ k b"l" // m"##),
            ["a", "d", "k", "b"]
        );
        assert_eq!(
            words("fn f<'a>(x: &'a str) -> char { 'b' }"),
            ["fn", "f", "x", "str", "char"]
        );
        assert_eq!(words(r#"let x = "a\"b"; y"#), ["let", "x", "y"]);
    }

    #[test]
    fn lines_are_counted_in_strings_and_comments() {
        let tokens = tokenize("\"a\nb\" /* \n */ c // d\n// e");
        let lines: Vec<usize> = tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 2, 3, 3, 4]);
        assert_eq!(
            tokens[3].kind,
            Kind::Comment {
                text: "// d",
                is_first: false
            }
        );
        assert_eq!(
            tokens[4].kind,
            Kind::Comment {
                text: "// e",
                is_first: true
            }
        );
    }

    #[test]
    fn code_for_tests_is_left_out() {
        let text = "a; #[cfg(test)] mod tests; b; #[cfg(all(test, unix))] mod inner { fn c() {} } \
            #[cfg(test)] #[derive(Debug)] fn d(e: [u8; 2]) {} f; #[cfg(not(test))] g;";
        let tokens = tokenize(text);
        let code = without_tests(&tokens);
        let left: Vec<&str> = code
            .tokens
            .iter()
            .filter_map(|token| match token.kind {
                Kind::Identifier(word) => Some(word),
                _ => None,
            })
            .collect();
        assert_eq!(left, ["a", "b", "f", "cfg", "not", "test", "g"]);
        assert_eq!(code.test_modules, ["tests"]);
    }
}

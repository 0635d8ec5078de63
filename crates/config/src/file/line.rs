//! Lines and their parts, with positions.

use zeroize::Zeroizing;

/// Returns true for blanks as in `wg` and `wg-quick`: C's `isspace` in the C locale.
pub(super) fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t'..='\r')
}

/// A part of a line.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    /// The whole line, without its end.
    line: &'a str,
    /// The line's number, counted from 1.
    pub(super) number: usize,
    /// Start of the part in the line, in bytes.
    start: usize,
    pub(super) text: &'a str,
}

impl<'a> Span<'a> {
    /// A whole line.
    pub(super) fn new(line: &'a str, number: usize) -> Self {
        Self {
            line,
            number,
            start: 0,
            text: line,
        }
    }

    /// Returns the column of its first character, counted from 1.
    pub(super) fn column(&self) -> usize {
        let before = self.line.get(..self.start).unwrap_or(self.line);
        before.chars().count() + 1
    }

    /// Returns its position in the line, in bytes.
    pub(super) fn range(&self) -> core::ops::Range<usize> {
        self.start..self.start + self.text.len()
    }

    /// Returns its part at `offset`, of `length` bytes.
    fn part(self, offset: usize, length: usize) -> Self {
        let text = self.text.get(offset..offset + length).unwrap_or_default();
        Self {
            start: self.start + offset,
            text,
            ..self
        }
    }

    /// Returns the part after its first `offset` bytes.
    pub(super) fn after(self, offset: usize) -> Self {
        self.part(offset, self.text.len().saturating_sub(offset))
    }

    /// Returns it without blanks at either end.
    pub(super) fn trim(self) -> Self {
        let rest = self.text.trim_start_matches(is_blank);
        let offset = self.text.len() - rest.len();
        self.part(offset, rest.trim_end_matches(is_blank).len())
    }

    /// Returns the parts before and after the first `separator`.
    pub(super) fn split_once(self, separator: char) -> Option<(Self, Self)> {
        let (before, _) = self.text.split_once(separator)?;
        let rest = self.after(before.len() + separator.len_utf8());
        Some((self.part(0, before.len()), rest))
    }

    /// Returns the trimmed parts between separators.
    pub(super) fn split(self, is_separator: fn(char) -> bool) -> impl Iterator<Item = Self> {
        let mut offset = 0;
        self.text.split(is_separator).map(move |text| {
            let part = self.part(offset, text.len());
            // Separators are single ASCII characters.
            offset += text.len() + 1;
            part.trim()
        })
    }

    /// Returns its `n`th character that is not a blank, counted from 1.
    pub(super) fn nth(self, n: usize) -> Self {
        let mut characters = self.text.char_indices().filter(|(_, c)| !is_blank(*c));
        characters
            .nth(n.saturating_sub(1))
            .map_or(self, |(offset, c)| self.part(offset, c.len_utf8()))
    }

    /// Returns the first character that satisfies a condition, with its position.
    pub(super) fn find(self, wanted: fn(char) -> bool) -> Option<(char, Self)> {
        let (offset, c) = self.text.char_indices().find(|(_, c)| wanted(*c))?;
        Some((c, self.part(offset, c.len_utf8())))
    }

    /// Returns its text without blanks, as `wg` reads it. A copy is zeroised, because it may be a
    /// secret.
    pub(super) fn clean(self) -> WithoutBlanks<'a> {
        if self.text.contains(is_blank) {
            // The final size from the start: reallocation would leave copies of a secret.
            let mut text = Zeroizing::new(String::with_capacity(self.text.len()));
            text.extend(self.text.chars().filter(|c| !is_blank(*c)));
            WithoutBlanks::Copied(text)
        } else {
            WithoutBlanks::Borrowed(self.text)
        }
    }
}

/// A text without blanks.
pub(super) enum WithoutBlanks<'a> {
    Borrowed(&'a str),
    Copied(Zeroizing<String>),
}

impl core::ops::Deref for WithoutBlanks<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Copied(text) => text,
        }
    }
}

/// Returns the text of a key's name, if it may be repeated: its characters are plausible there, and
/// it is too short for a secret.
pub(super) fn quotable(text: &str) -> Option<String> {
    let plausible =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | '[' | ']');
    let fits = (1..=32).contains(&text.len()) && text.chars().all(plausible);
    fits.then(|| text.to_owned())
}

/// Returns the text of an address, on the same conditions.
pub(super) fn quotable_address(text: &str) -> Option<String> {
    let plausible = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/');
    let fits = (1..=43).contains(&text.len()) && text.chars().all(plausible);
    fits.then(|| text.to_owned())
}

/// Returns the text of an application, on the same conditions.
pub(super) fn quotable_application(text: &str) -> Option<String> {
    let plausible = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(
                c,
                ' ' | '_' | '-' | '.' | '/' | '*' | ':' | ';' | '\\' | '~' | '+'
            )
    };
    let fits = (1..=32).contains(&text.len()) && text.chars().all(plausible);
    fits.then(|| text.to_owned())
}

/// Returns the lines of a text with their numbers, without their ends. The text after the last line
/// feed is a line unless it is empty.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let whole = text.strip_suffix(b"\n").unwrap_or(text);
    let count = if text.is_empty() { 0 } else { usize::MAX };
    whole
        .split(|byte| *byte == b'\n')
        .take(count)
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// Returns a text without the byte-order mark of UTF-8.
pub(super) fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Returns the beginning of a line up to the first invalid UTF-8, and true if that is the whole
/// line.
pub(super) fn utf8(line: &[u8]) -> (&str, bool) {
    match core::str::from_utf8(line) {
        Ok(text) => (text, true),
        Err(error) => {
            let valid = line.get(..error.valid_up_to()).unwrap_or_default();
            (core::str::from_utf8(valid).unwrap_or_default(), false)
        }
    }
}

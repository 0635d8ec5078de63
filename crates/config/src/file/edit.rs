//! Positions of entries in a file, and edits of application lists that leave every other byte
//! unchanged.
//!
//! These functions are for files in which [`parse`](super::parse()) finds no error.

use core::ops::Range;

use zeroize::Zeroizing;

use super::keys::{self, Key, KeyName};
use super::line::{Span, utf8, without_byte_order_mark};
use super::parse::COMMENT_PREFIXES;
use crate::application::Application;

/// An entry of a list, or a single value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Its line, counted from 1.
    pub line: usize,
    /// Column of its first character, counted from 1.
    pub column: usize,
    /// Its text.
    pub text: &'a str,
    /// Its position in the file, in bytes.
    span: Range<usize>,
}

/// Returns the entries of all lines with a key.
#[must_use]
pub fn entries(text: &[u8], key: Key) -> Vec<Entry<'_>> {
    let lines = key_lines(text).filter(|line| line.key == key);
    lines.flat_map(|line| line.entries()).collect()
}

/// Returns the file with an application added to the list of `key`, which is `AllowedApps` or
/// `DisallowedApps`. The new entry follows the last one of the list. If there is no list yet, it
/// gets a new line, which is a comment to other programs if the other keys of transparent mode are.
#[must_use]
pub fn with_application(text: &[u8], key: Key, application: &Application) -> Zeroizing<Vec<u8>> {
    let last = |wanted: fn(Key, Key) -> bool| key_lines(text).filter(|l| wanted(l.key, key)).last();
    if let Some(line) = last(|there, key| there == key) {
        let end = line.start + line.value.range().end;
        return splice(text, end..end, &format!(", {application}"));
    }
    let (after, prefix) = match last(|there, _| there.is_transparent_mode()) {
        Some(line) => (line.range, line.comment_prefix.unwrap_or_default()),
        None => (end_of_interface(text), ""),
    };
    let before = text.get(after.clone()).unwrap_or_default();
    let line = format!("{prefix}{} = {application}", key.name());
    let line = match before {
        [.., b'\r', b'\n'] => format!("{line}\r\n"),
        [.., b'\n'] => format!("{line}\n"),
        // The last line of the file has no line feed.
        _ => format!("\n{line}"),
    };
    splice(text, after.end..after.end, &line)
}

/// Returns the file without an application in the list of `key`; `None` if it is not in the list.
/// Removes a line that has no other entry, but not the comment behind it.
#[must_use]
pub fn without_application(
    text: &[u8],
    key: Key,
    application: &Application,
) -> Option<Zeroizing<Vec<u8>>> {
    let mut rest = splice(text, removal(text, key, application)?, "");
    while let Some(range) = removal(&rest, key, application) {
        rest = splice(&rest, range, "");
    }
    Some(rest)
}

/// Returns the bytes to remove so that one line no longer lists an application.
fn removal(text: &[u8], key: Key, application: &Application) -> Option<Range<usize>> {
    let mut lines = key_lines(text).filter(|line| line.key == key);
    lines.find_map(|line| line.removal(application))
}

/// A line with a key.
struct KeyLine<'a> {
    key: Key,
    comment_prefix: Option<&'static str>,
    value: Span<'a>,
    /// Start of the line in the file.
    start: usize,
    /// The line with its end.
    range: Range<usize>,
    /// The part to remove with the last entry: the line without the comment behind it.
    removable: Range<usize>,
}

impl<'a> KeyLine<'a> {
    fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let start = self.start;
        self.value.split(|c| c == ',').map(move |part| {
            let range = part.range();
            Entry {
                line: part.number,
                column: part.column(),
                text: part.text,
                span: start + range.start..start + range.end,
            }
        })
    }

    /// Returns the bytes to remove so that this line no longer lists an application.
    fn removal(&self, application: &Application) -> Option<Range<usize>> {
        let entries: Vec<_> = self.entries().collect();
        let is_it =
            |entry: &Entry<'_>| entry.text.parse::<Application>().as_ref() == Ok(application);
        let at = entries.iter().position(is_it)?;
        let (before, rest) = entries.split_at(at);
        Some(match (before.last(), rest) {
            (Some(before), [entry, ..]) => before.span.end..entry.span.end,
            (None, [entry, next, ..]) => entry.span.start..next.span.start,
            _ => self.removable.clone(),
        })
    }
}

fn key_lines(text: &[u8]) -> impl Iterator<Item = KeyLine<'_>> {
    lines_with_ranges(text).filter_map(move |(number, range, bytes)| {
        let line = Span::new(utf8(bytes).0, number);
        let mut prefixes = COMMENT_PREFIXES.into_iter();
        let comment_prefix = prefixes.find(|prefix| line.trim().text.starts_with(prefix));
        let rest = comment_prefix.map_or(line, |prefix| line.trim().after(prefix.len()));
        let (body, comment) = match rest.split_once('#') {
            Some((body, comment)) => (body, Some(comment)),
            None => (rest, None),
        };
        let (name, value) = body.split_once('=')?;
        let Some(KeyName::Known(key)) = keys::find(&name.trim().clean()) else {
            return None;
        };
        Some(KeyLine {
            key,
            comment_prefix,
            value: value.trim(),
            start: range.start,
            removable: match comment.map(|comment| range.start + comment.range().start - 1) {
                // Without the key before it, the comment would be read as a key.
                Some(at) if has_comment_prefix(text.get(at..).unwrap_or_default()) => range.clone(),
                Some(at) => range.start..at,
                None => range.clone(),
            },
            range,
        })
    })
}

/// Returns true if Taupe reads this comment although other programs do not.
fn has_comment_prefix(text: &[u8]) -> bool {
    COMMENT_PREFIXES
        .iter()
        .any(|prefix| text.starts_with(prefix.as_bytes()))
}

/// Returns the lines with their numbers and positions. A position includes the line's end.
fn lines_with_ranges(text: &[u8]) -> impl Iterator<Item = (usize, Range<usize>, &[u8])> {
    let body = without_byte_order_mark(text);
    let mut end = text.len() - body.len();
    let lines = body.split_inclusive(|byte| *byte == b'\n');
    (1..).zip(lines).map(move |(number, line)| {
        let start = end;
        end += line.len();
        (number, start..end, line)
    })
}

/// Returns the last line of `[Interface]` that is not empty.
fn end_of_interface(text: &[u8]) -> Range<usize> {
    let mut inside = false;
    let mut last = text.len()..text.len();
    for (_, range, bytes) in lines_with_ranges(text) {
        let line = utf8(bytes).0.trim();
        if line.starts_with('[') {
            inside = Span::new(line, 0)
                .clean()
                .to_ascii_lowercase()
                .starts_with("[interface]");
        }
        if inside && !line.is_empty() {
            last = range;
        }
    }
    last
}

/// Replaces a range of the text. The buffer has its final size from the start, because reallocation
/// would leave copies of keys in freed memory.
fn splice(text: &[u8], range: Range<usize>, with: &str) -> Zeroizing<Vec<u8>> {
    let before = text.get(..range.start).unwrap_or_default();
    let after = text.get(range.end..).unwrap_or_default();
    let mut spliced = Vec::with_capacity(before.len() + with.len() + after.len());
    spliced.extend_from_slice(before);
    spliced.extend_from_slice(with.as_bytes());
    spliced.extend_from_slice(after);
    Zeroizing::new(spliced)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(text: &str) -> Application {
        text.parse().expect("an application")
    }

    fn with(text: &str, key: Key, application: &str) -> String {
        let edited = with_application(text.as_bytes(), key, &app(application));
        String::from_utf8(edited.to_vec()).expect("UTF-8")
    }

    fn without(text: &str, key: Key, application: &str) -> Option<String> {
        let edited = without_application(text.as_bytes(), key, &app(application))?;
        Some(String::from_utf8(edited.to_vec()).expect("UTF-8"))
    }

    #[test]
    fn an_application_is_added_to_its_list() {
        for (before, after) in [
            (
                "[Interface]\nAllowedApps = a, b # two\n[Peer]\nX\n",
                "[Interface]\nAllowedApps = a, b, /usr/bin/curl # two\n[Peer]\nX\n",
            ),
            (
                "\u{feff}[Peer]\r\n  #@ws:allowedapps=a\r\nE\r\n",
                "\u{feff}[Peer]\r\n  #@ws:allowedapps=a, /usr/bin/curl\r\nE\r\n",
            ),
            (
                "[Peer]\r\n#@taupe:DisallowedApps = a\r\nE",
                "[Peer]\r\n#@taupe:DisallowedApps = a\r\n#@taupe:AllowedApps = /usr/bin/curl\r\nE",
            ),
            (
                "[Interface]\nPrivateKey = k\n\n[Peer]\nPublicKey = p",
                "[Interface]\nPrivateKey = k\nAllowedApps = /usr/bin/curl\n\n[Peer]\nPublicKey = p",
            ),
            (
                "[Peer]\nPublicKey = p\n[Interface]\nPrivateKey = k",
                "[Peer]\nPublicKey = p\n[Interface]\nPrivateKey = k\nAllowedApps = /usr/bin/curl",
            ),
            // The last of several lines.
            (
                "[Interface]\nAllowedApps = a\nAllowedApps = b\nMTU = 1420",
                "[Interface]\nAllowedApps = a\nAllowedApps = b, /usr/bin/curl\nMTU = 1420",
            ),
        ] {
            assert_eq!(with(before, Key::AllowedApps, "/usr/bin/curl"), after);
        }
    }

    #[test]
    fn an_application_is_removed_with_its_comma_or_its_line() {
        for (before, after) in [
            ("AllowedApps = b\nX\n", Some("X\n")),
            ("X\n  AllowedApps = b  # why\r\nY", Some("X\n# why\r\nY")),
            ("#@ws:AllowedApps = b # why", Some("# why")),
            ("AllowedApps = b #@ws:AllowedApps = c\nX", Some("X")),
            (
                "AllowedApps = b, c # d\r\n",
                Some("AllowedApps = c # d\r\n"),
            ),
            ("AllowedApps = a,B.exe\n", Some("AllowedApps = a\n")),
            ("AllowedApps = a, b , c\n", Some("AllowedApps = a , c\n")),
            (
                "#@ws:AllowedApps = b,a,b\nAllowedApps=b",
                Some("#@ws:AllowedApps = a\n"),
            ),
            ("DisallowedApps = b\n# AllowedApps = b\n", None),
        ] {
            let edited = without(before, Key::AllowedApps, "b");
            assert_eq!(edited.as_deref(), after, "{before}");
        }
    }

    #[test]
    fn adding_and_removing_restores_the_file() {
        for before in [
            "[Interface]\nPrivateKey = k\n\n[Peer]\nPublicKey = p\n",
            "[Interface]\r\nAllowedApps = a , c #x\r\n[Peer]\r\n",
            "[Interface]\n#@taupe: DisallowedApps = a\n",
        ] {
            let edited = with(before, Key::AllowedApps, "cgroup:/a/b");
            assert_ne!(edited, before);
            let back = without(&edited, Key::AllowedApps, "cgroup:/a/b");
            assert_eq!(back.as_deref(), Some(before));
        }
    }

    #[test]
    fn entries_have_positions() {
        let text = "[Peer]\n#@ws:AllowedIPs = 10.0.0.0/8, ::/0\nAllowedIPs=1.2.3.4 # 5.6.7.8\n";
        let found: Vec<_> = entries(text.as_bytes(), Key::AllowedIps)
            .into_iter()
            .map(|entry| (entry.line, entry.column, entry.text))
            .collect();
        assert_eq!(
            found,
            [(2, 19, "10.0.0.0/8"), (2, 31, "::/0"), (3, 12, "1.2.3.4")]
        );
    }
}

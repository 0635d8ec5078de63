//! Text for the screen: without control characters, with units, cut to a width.

use std::fmt;
use std::time::Duration;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Characters of a text that are kept, at most.
const MAX_TEXT: usize = 1024;

/// Text from outside, without characters that control the terminal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Text(String);

impl Text {
    /// Removes control characters, and characters that change the direction or have no width. Line
    /// breaks and tabs become spaces.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let shown = text.chars().map(|c| match c {
            '\n' | '\t' => ' ',
            c => c,
        });
        Self(shown.filter(|c| is_shown(*c)).take(MAX_TEXT).collect())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if nothing is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Checks whether a character is visible and leaves the order of its neighbours as it is. Combining
/// characters are left out too: without their neighbours they would move to another cell.
fn is_shown(c: char) -> bool {
    !c.is_control() && c.width().is_some_and(|width| width > 0)
}

/// Returns the number of cells that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Cuts a text to a width in cells; `…` stands for what is left out at the end.
pub(crate) fn cut_end(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.to_owned();
    }
    let mut left = limit.saturating_sub(1);
    let fits = |c: &char| {
        let own = c.width().unwrap_or_default();
        let is_fitting = own <= left;
        left = left.saturating_sub(own);
        is_fitting
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    if limit > 0 {
        cut.push('…');
    }
    cut
}

/// Cuts a path to a width in cells; `…` stands for what is left out at its beginning, because the name
/// at its end says more.
pub(crate) fn cut_start(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.to_owned();
    }
    let reversed: String = text.chars().rev().collect();
    cut_end(&reversed, limit).chars().rev().collect()
}

/// Splits a text into lines of at most this many cells, between words if possible.
pub(crate) fn wrapped(text: &str, limit: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut word = word.to_owned();
        let needed = width(&line) + usize::from(!line.is_empty()) + width(&word);
        if needed > limit && !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        while width(&word) > limit && limit > 1 {
            let mut left = limit;
            let end = word.char_indices().find(|(_, c)| {
                let own = c.width().unwrap_or_default();
                let is_over = own > left;
                left = left.saturating_sub(own);
                is_over
            });
            let rest = word.split_off(end.map_or(word.len(), |(at, _)| at));
            lines.push(std::mem::replace(&mut word, rest));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += &word;
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Formats a number of bytes in at most eight cells, such as `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"");
    // 1000 KiB would take one more cell than 0.98 MiB.
    while value >= 999.5 {
        let Some(next) = units.next() else { break };
        value /= 1024.0;
        unit = next;
    }
    match value {
        ..99.95 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// Formats a rate in bytes per second; `-` if it is unknown.
pub(crate) fn rate(rate: Option<u64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(0) => "0".to_owned(),
        Some(rate) => format!("{}/s", bytes(rate)),
    }
}

/// Formats an age in one unit, such as `3 min`.
pub(crate) fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_removed() {
        for (hostile, clean) in [
            ("\x1b]0;title\x07x", "]0;titlex"),
            ("a\u{9b}31mb", "a31mb"),
            ("two\nlines\tand", "two lines and"),
            ("\u{202e}gpj.exe\u{2066}", "gpj.exe"),
            ("zero\u{200b}width\u{feff}", "zerowidth"),
            ("e\u{301}\u{301}\u{301}", "e"),
            ("Zoë 漢字", "Zoë 漢字"),
        ] {
            assert_eq!(Text::new(hostile).as_str(), clean);
        }
        assert_eq!(Text::new(&"x".repeat(5000)).as_str().len(), MAX_TEXT);
    }

    #[test]
    fn texts_are_cut_to_cells() {
        for (limit, end, start) in [
            (0, "", ""),
            (1, "…", "…"),
            (4, "/us…", "…url"),
            (13, "/usr/bin/curl", "/usr/bin/curl"),
        ] {
            assert_eq!(cut_end("/usr/bin/curl", limit), end);
            assert_eq!(cut_start("/usr/bin/curl", limit), start);
        }
        // Each of these takes two cells.
        assert_eq!(cut_end("漢字漢字", 6), "漢字…");
        assert_eq!(cut_end("漢字漢字", 4), "漢…");
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrapped("a 漢字漢字 b", 4), ["a", "漢字", "漢字", "b"]);
        assert_eq!(wrapped("", 4), Vec::<String>::new());
        assert_eq!(wrapped("漢", 1), ["漢"]);
    }

    #[test]
    fn bytes_take_at_most_eight_cells() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (102_400, "100 KiB"),
            (1_023_999, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        for shift in 0..64 {
            for less in [0, 1, 2] {
                let text = bytes((1_u64 << shift).saturating_sub(less));
                assert!(text.len() <= 8, "{text}");
            }
        }
        assert_eq!(rate(Some(1536)), "1.5 KiB/s");
        assert_eq!([rate(None), rate(Some(0))], ["-", "0"]);
    }
}

//! Text from outside: names in files, paths of programs, sentences that contain them.

use maud::Render;
use serde::{Deserialize, Deserializer};
use std::fmt;
use unicode_width::UnicodeWidthChar as _;

/// Characters of a text, at most. The rest is left out.
const MAX_LENGTH: usize = 1000;

/// Marks on one character, at most: more would cover the lines above.
const MAX_MARKS: usize = 3;

/// Text without characters that change how other text is shown. maud escapes it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Text {
    shown: String,
    /// True if no characters are left out.
    is_exact: bool,
}

impl Text {
    pub(crate) fn of(text: &str) -> Self {
        let mut marks = 0;
        let mut shown = text.chars().filter(|c| {
            marks = if c.width() == Some(0) { marks + 1 } else { 0 };
            marks <= MAX_MARKS && !is_hidden(*c)
        });
        let mut short: String = shown.by_ref().take(MAX_LENGTH).collect();
        if shown.next().is_some() {
            short.push('…');
        }
        let is_exact = short == text;
        Self {
            shown: short,
            is_exact,
        }
    }

    /// Returns the text if no characters are left out, for use as a value.
    pub(crate) fn exact(&self) -> Option<&str> {
        self.is_exact.then_some(&*self.shown)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.shown
    }
}

/// Returns true for control characters, for line and paragraph separators, and for Unicode's
/// `Default_Ignorable_Code_Point`, which includes all that change the direction of text.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

impl<'a> Deserialize<'a> for Text {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::of(&String::deserialize(deserializer)?))
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Render for Text {
    fn render_to(&self, buffer: &mut String) {
        self.shown.render_to(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_LENGTH, Text};

    #[test]
    fn characters_that_change_others_are_left_out() {
        let hostile = "a\u{202e}b\u{2066}c\u{0}\u{1b}[31m\u{200f}\nd\u{feff}\u{85}\u{e0041}";
        assert_eq!(Text::of(hostile).as_str(), "abc[31md");
        for usual in ["Zoë’s 電話 👩 <b>", "Zoe\u{308} ล้ำ हिन्दी"] {
            assert_eq!(Text::of(usual).exact(), Some(usual));
        }
        let ignorable = "a\u{ad}b\u{34f}c\u{200d}\u{3164}\u{fe0f}\u{115f}\u{e01ef}\u{180e}d";
        assert_eq!(Text::of(ignorable).as_str(), "abcd");
        let stacked = format!("a{}b", "\u{335}".repeat(50));
        assert_eq!(Text::of(&stacked).as_str(), "a\u{335}\u{335}\u{335}b");
        let long = Text::of(&"x".repeat(MAX_LENGTH + 1));
        assert_eq!(long.as_str().chars().count(), MAX_LENGTH + 1);
        assert!(long.as_str().ends_with("x…"));
        assert_eq!((long.exact(), Text::of(hostile).exact()), (None, None));
    }
}

//! Text from outside: names in files, paths of programs, sentences that contain them.

use maud::Render;
use serde::{Deserialize, Deserializer};
use std::fmt;

/// Characters of a text, at most. The rest is left out.
const MAX_LENGTH: usize = 1000;

/// Text without characters that change how other text is shown. maud escapes it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Text(String);

impl Text {
    pub(crate) fn of(text: &str) -> Self {
        let mut shown = text.chars().filter(|c| !changes_others(*c));
        let mut short: String = shown.by_ref().take(MAX_LENGTH).collect();
        if shown.next().is_some() {
            short.push('…');
        }
        Self(short)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns true for control characters and for those that change the direction of text, or are
/// invisible (UTS #39 and Unicode TR9).
fn changes_others(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

impl<'a> Deserialize<'a> for Text {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::of(&String::deserialize(deserializer)?))
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Render for Text {
    fn render_to(&self, buffer: &mut String) {
        self.0.as_str().render_to(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_LENGTH, Text};

    #[test]
    fn characters_that_change_others_are_left_out() {
        let hostile = "a\u{202e}b\u{2066}c\u{0}\u{1b}[31m\u{200f}\nd\u{feff}\u{85}\u{e0041}";
        assert_eq!(Text::of(hostile).as_str(), "abc[31md");
        let usual = "Zoë’s 電話 👩‍🚀 <b>";
        assert_eq!(Text::of(usual).as_str(), usual);
        let long = Text::of(&"x".repeat(MAX_LENGTH + 1));
        assert_eq!(long.as_str().chars().count(), MAX_LENGTH + 1);
        assert!(long.as_str().ends_with("x…"));
    }
}

//! Characters that look like others, and invisible ones.

use super::keys::{self, Key, KeyName};
use super::line::is_blank;

/// Meaning of an invisible character.
pub(super) const NOTHING: &str = "nothing";

/// Formats the character that was probably meant instead of another one. Nothing if that is
/// invisible.
pub(super) fn instead_of(character: char) -> impl core::fmt::Display {
    core::fmt::from_fn(move |f| match look_alike(character).1 {
        NOTHING => Ok(()),
        meant => write!(f, " instead of {meant}"),
    })
}

/// Returns the name of a character, and the character that was probably meant.
pub(super) fn look_alike(character: char) -> (&'static str, &'static str) {
    match character {
        '\u{a0}' | '\u{2007}' | '\u{202f}' => ("a no-break space", "an ordinary space"),
        '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{205f}' | '\u{3000}' => {
            ("a wide or narrow space", "an ordinary space")
        }
        // Unicode's Default_Ignorable_Code_Point: fonts do not draw them.
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => ("an invisible character", NOTHING),
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' => {
            ("a typographic quotation mark", "an ordinary one (')")
        }
        '\u{201c}'..='\u{201f}' | '\u{ab}' | '\u{bb}' => {
            ("a typographic quotation mark", "an ordinary one (\")")
        }
        '\u{2010}'..='\u{2015}' | '\u{2212}' => ("a typographic dash", "an ordinary -"),
        '\u{2026}' => ("an ellipsis", "what it stands for"),
        '\u{ff1d}' => ("a wide equals sign", "an ordinary ="),
        '\u{ff0c}' | '\u{3001}' => ("a wide comma", "an ordinary ,"),
        '\u{ff1a}' => ("a wide colon", "an ordinary :"),
        '\u{ff03}' => ("a wide number sign", "an ordinary #"),
        '\u{2028}' | '\u{2029}' | '\u{85}' => ("an unusual line end", "an ordinary one"),
        '\0'..=' ' | '\u{7f}'..='\u{9f}' => ("a control character", NOTHING),
        _ => (UNUSUAL, "an ordinary one"),
    }
}

/// Returns true if [`look_alike`] names a character.
pub(super) fn is_look_alike(character: char) -> bool {
    let is_plain = character.is_ascii_graphic() || is_blank(character);
    !is_plain && look_alike(character).0 != UNUSUAL
}

/// Returns true if a character is invisible or ends a line.
pub(super) fn is_invisible(character: char) -> bool {
    let is_blank_or_plain = character == ' ' || character.is_ascii_graphic();
    let is_line_end = matches!(character, '\u{85}' | '\u{2028}' | '\u{2029}');
    is_line_end || !is_blank_or_plain && look_alike(character).1 == NOTHING
}

/// Returns the key that a text was probably meant to be: the text without such characters, or else
/// the text without invisible characters up to the first other one of them.
pub(super) fn intended_key(text: &str) -> Option<Key> {
    let known = |word: &str| match keys::find(word) {
        Some(KeyName::Known(key)) => Some(key),
        _ => None,
    };
    let is_word = |c: &char| !is_look_alike(*c) && !is_blank(*c);
    let visible: String = text.chars().take(MAX_KEY_CHARS).filter(is_word).collect();
    let seen = text.chars().take(MAX_KEY_CHARS);
    let seen = seen.filter(|c| !is_look_alike(*c) || look_alike(*c).1 != NOTHING);
    let begin: String = seen.take_while(is_word).collect();
    known(&visible).or_else(|| known(&begin))
}

/// More characters than any key has, with some between them.
const MAX_KEY_CHARS: usize = 64;

const UNUSUAL: &str = "an unusual character";

//! Characters that look like others, and invisible ones.

use super::line::is_blank;
use super::word::{self, Key, Word};

/// Meaning of an invisible character.
pub(super) const NOTHING: &str = "nothing";

/// Describes the place at which other programs put a character.
pub(super) fn put(character: char) -> impl core::fmt::Display {
    core::fmt::from_fn(move |f| match look_alike(character).1 {
        NOTHING => f.write_str("where nothing was meant"),
        meant => write!(f, "in place of {meant}"),
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

/// Returns the key that a text was probably meant to be: the text without such characters, or else
/// the text without invisible characters up to the first other one of them.
pub(super) fn intended(text: &str) -> Option<Key> {
    let known = |word: &str| match word::find(word) {
        Some(Word::Known(key)) => Some(key),
        _ => None,
    };
    let is_word = |c: &char| !is_look_alike(*c) && !is_blank(*c);
    let whole: String = text.chars().take(LONGEST).filter(is_word).collect();
    let seen = text.chars().take(LONGEST);
    let seen = seen.filter(|c| !is_look_alike(*c) || look_alike(*c).1 != NOTHING);
    let begin: String = seen.take_while(is_word).collect();
    known(&whole).or_else(|| known(&begin))
}

/// More characters than any key has, with some between them.
const LONGEST: usize = 64;

const UNUSUAL: &str = "an unusual character";

//! Comments that begin as no sentence does.

use crate::tokens::{Kind, Token};

/// First words of comments that need a second reading.
const WORDS: [&str; 6] = ["What", "Whether", "How", "Of", "Who", "That"];

/// Returns the line and the first words of each comment that begins with one of [`WORDS`].
/// Successive lines are one comment.
pub(super) fn unclear<'t>(tokens: &[Token<'t>]) -> Vec<(usize, &'t str)> {
    let mut found = Vec::new();
    let mut before: Option<(usize, &str)> = None;
    for token in tokens {
        let Kind::Comment { text, is_first } = token.kind else {
            before = None;
            continue;
        };
        let marker = &text[..text.len() - text.trim_start_matches(['/', '*', '!']).len()];
        let goes_on = is_first
            && text.starts_with("//")
            && before == Some((token.line.wrapping_sub(1), marker));
        before = is_first.then_some((token.line, marker));
        let sentence =
            text[marker.len()..].trim_start_matches(|c: char| c.is_whitespace() || c == '*');
        if !goes_on && begins_unclear(sentence) {
            found.push((token.line, sentence.lines().next().unwrap_or_default()));
        }
    }
    found
}

fn begins_unclear(sentence: &str) -> bool {
    let end = sentence
        .find(|c: char| !c.is_alphanumeric())
        .unwrap_or(sentence.len());
    WORDS.contains(&&sentence[..end])
}

#[cfg(test)]
mod tests {
    use super::unclear;
    use crate::tokens::tokenize;

    #[test]
    fn only_the_first_word_of_a_comment_counts() {
        let text = "/// What it is.\n/// Who reads on.\nfn a() {} // Of this\n// That is another.\n\
            //! Whatever.\n/* How\n so */ /**\n * Whether */\n// The first.\n// What follows.\nlet b = \"// What\";\n";
        let lines: Vec<usize> = unclear(&tokenize(text))
            .into_iter()
            .map(|(line, _)| line)
            .collect();
        assert_eq!(lines, [1, 3, 4, 6, 7]);
    }
}

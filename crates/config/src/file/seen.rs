//! Which keys stand in a section.

use super::word::Key;

/// Which keys a section has, by the key's number.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    /// The line where it stands first, 0 for none.
    lines: [usize; Key::ALL.len()],
    /// Whether something stands there that was probably meant to be it.
    mistyped: [bool; Key::ALL.len()],
}

impl Seen {
    /// Notes a key; the line where it stood first, if there is one.
    pub(super) fn note(&mut self, key: Key, line: usize) -> Option<usize> {
        let first = self.lines.get_mut(key as usize)?;
        if *first == 0 {
            *first = line;
            return None;
        }
        Some(*first)
    }

    pub(super) fn note_mistyped(&mut self, key: Key) {
        if let Some(mistyped) = self.mistyped.get_mut(key as usize) {
            *mistyped = true;
        }
    }

    /// Whether a key is missing. One that was mistyped is told of there: its
    /// lack is only the consequence.
    pub(super) fn lacks(&self, key: Key) -> bool {
        self.lines.get(key as usize) == Some(&0) && self.mistyped.get(key as usize) == Some(&false)
    }
}

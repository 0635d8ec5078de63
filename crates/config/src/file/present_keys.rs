//! Keys that a section contains.

use super::keys::Key;

/// Keys that a section contains, by the number of the key.
#[derive(Clone, Copy, Default)]
pub(super) struct PresentKeys {
    /// First line of each key; 0 if it is absent.
    lines: [usize; Key::ALL.len()],
    /// True if a mistyped name was probably meant to be the key.
    mistyped: [bool; Key::ALL.len()],
}

impl PresentKeys {
    /// Records a key. Returns its first line if it is a repetition.
    pub(super) fn record(&mut self, key: Key, line: usize) -> Option<usize> {
        let first = self.lines.get_mut(key as usize)?;
        if *first == 0 {
            *first = line;
            return None;
        }
        Some(*first)
    }

    pub(super) fn record_mistyped(&mut self, key: Key) {
        if let Some(mistyped) = self.mistyped.get_mut(key as usize) {
            *mistyped = true;
        }
    }

    /// Returns true if a key is missing. A mistyped key does not count as missing, because it is
    /// already reported.
    pub(super) fn is_missing(&self, key: Key) -> bool {
        self.lines.get(key as usize) == Some(&0) && self.mistyped.get(key as usize) == Some(&false)
    }
}

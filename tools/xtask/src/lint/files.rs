//! Files that are too long to be one idea.

const LINES: usize = 600;

/// Returns the number of lines if it is more than a file may have.
pub(super) fn excess(text: &str) -> Option<usize> {
    Some(text.lines().count()).filter(|lines| *lines > LINES)
}

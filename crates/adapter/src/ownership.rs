//! Comparison of the present interface with the one in a journal.

use crate::change::Change;
use crate::journal::Journal;
use crate::machine::Machine;

/// Returns true if the interface that was found belongs to the journal. If the process was killed
/// before it wrote the index to the journal, the interface belongs to it, because the name was
/// free.
pub(crate) fn is_ours(journal: &Journal, found: Option<u32>) -> bool {
    found.is_some_and(|found| match journal.interface() {
        Some(index) => index == found,
        None => journal
            .changes()
            .any(|(_, change)| *change == Change::Device),
    })
}

/// Returns true if the journal's device is running although its interface does not have the
/// tunnel's name: it was renamed, or moved to another network namespace.
pub(crate) fn was_renamed_or_moved(
    machine: &mut dyn Machine,
    journal: &Journal,
    found: Option<u32>,
) -> bool {
    let socket = journal.socket();
    !is_ours(journal, found) && socket.is_some_and(|socket| machine.lives(socket))
}

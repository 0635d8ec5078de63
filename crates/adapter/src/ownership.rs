//! Ownership: compares the interface that is there with the one in a journal.

use crate::journal::Journal;
use crate::machine::Machine;

/// Returns whether the interface that was found is the journal's own. If the process was killed
/// before it wrote the number down, the interface is its own, since the name was free.
pub(crate) fn is_ours(journal: &Journal, found: Option<u32>) -> bool {
    found.is_some_and(|found| journal.interface().is_none_or(|index| index == found))
}

/// Checks whether the journal's device is there, though no interface of the tunnel's name
/// is its own: that has been renamed, or moved to another network namespace.
pub(crate) fn runs_elsewhere(
    machine: &mut dyn Machine,
    journal: &Journal,
    found: Option<u32>,
) -> bool {
    let socket = journal.socket();
    !is_ours(journal, found) && socket.is_some_and(|socket| machine.lives(socket))
}

//! The first step of confinement: rights that belong to a thread.

use crate::layer::{Layer, LayerState, LayerStatus};
use crate::rights::Rights;
use crate::{capabilities, paths};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::set_no_new_privs;

/// Restricts the calling thread, and the threads that it starts later, to some rights. Disables core
/// files of the process.
pub fn restrict_thread(rights: &Rights) -> [LayerStatus; 4] {
    // Landlock needs it, and capabilities of a file could otherwise come back by executing the file.
    let no_new_privs = LayerState::of(set_no_new_privs(true));
    let paths = paths::restrict(rights);
    let capabilities = LayerState::of(capabilities::drop_all_but(rights.capabilities));
    let not_dumpable = LayerState::of(set_dumpable_behavior(DumpableBehavior::NotDumpable));
    [
        LayerStatus::new(Layer::NoNewPrivileges, no_new_privs),
        LayerStatus::new(Layer::Capabilities, capabilities),
        LayerStatus::new(Layer::NotDumpable, not_dumpable),
        LayerStatus::new(Layer::Paths, paths),
    ]
}

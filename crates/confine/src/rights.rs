//! Rights that stay, and the first step of confinement.

use crate::layer::{Layer, LayerState, LayerStatus};
use crate::{capabilities, paths};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, set_no_new_privs};
use std::path::PathBuf;

/// Rights of a thread after [`restrict_thread`]. A path that does not exist then stays closed.
#[derive(Clone, Debug)]
pub struct Rights {
    /// Folders in which it may create, read, write, rename and remove files.
    pub state_folders: Vec<PathBuf>,
    /// Files, and folders with everything below, that it may read.
    pub readable: Vec<PathBuf>,
    /// Folders in which it may remove files.
    pub removable: Vec<PathBuf>,
    /// Permits TCP connections to port 53. All others are refused, and so is listening.
    pub asks_name_servers: bool,
    /// Permits signals to processes without these restrictions.
    pub signals_others: bool,
    /// Permits connections to abstract Unix sockets of such processes.
    pub abstract_sockets: bool,
    /// Capabilities that stay, if the process has them.
    pub capabilities: CapabilitySet,
}

impl Rights {
    /// Returns the rights of a thread that opens nothing.
    #[must_use]
    pub fn none() -> Self {
        Self {
            state_folders: Vec::new(),
            readable: Vec::new(),
            removable: Vec::new(),
            asks_name_servers: false,
            signals_others: false,
            abstract_sockets: false,
            capabilities: CapabilitySet::empty(),
        }
    }
}

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

//! Rights that stay.

use rustix::thread::CapabilitySet;
use std::path::PathBuf;

/// Rights of a thread after [`restrict_thread`](crate::restrict_thread). A path that does not exist at
/// that moment stays inaccessible.
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

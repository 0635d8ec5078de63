//! Linux and other Unix systems.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The user who may read every file, with advice.
pub(crate) const ADMINISTRATOR: &str = "root (sudo)";

/// Returns the folder of configuration files that are given by name.
pub(crate) fn conf_folder() -> PathBuf {
    PathBuf::from("/etc/wireguard")
}

/// Returns the mode of a file, or 0 if it cannot be read.
pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0, |metadata| metadata.mode())
}

//! Windows.

use std::path::{Path, PathBuf};
use taupe_config::file::Parsed;

/// The users who may read every file.
pub(crate) const ADMINISTRATOR: &str = "an administrator";

/// Folders besides [`conf_folder`]: none.
pub(crate) const FURTHER_CONF_FOLDERS: [&str; 0] = [];

/// Length of the longest name of a tunnel in bytes, the limit of other WireGuard programs. No
/// interface has to take the name.
pub(crate) const LONGEST_NAME: usize = 32;

/// Returns the folder of configuration files that are given by name: `Taupe` in `%ProgramData%`,
/// `C:\ProgramData` by default.
pub(crate) fn conf_folder() -> PathBuf {
    let data = std::env::var_os("ProgramData").unwrap_or_else(|| r"C:\ProgramData".into());
    PathBuf::from(data).join("Taupe")
}

/// Returns 0: files have no modes.
pub(crate) fn mode(_: &Path) -> u32 {
    0
}

/// Adds nothing: processes are examined only on Linux.
pub(crate) fn warn_of_applications(_: &[u8], _: &mut Parsed) {}

//! Linux.

mod unix;

pub(crate) use unix::{ADMINISTRATOR, conf_folder, mode};

use taupe_config::file::Parsed;

/// Folders besides [`conf_folder`]: none.
pub(crate) const FURTHER_CONF_FOLDERS: [&str; 0] = [];

/// Length of the longest name of an interface in bytes: `IFNAMSIZ` without the final zero byte.
pub(crate) const LONGEST_NAME: usize = 15;

/// Checks whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Adds warnings about applications in a file that may not match the intended processes.
pub(crate) fn warn_of_applications(text: &[u8], parsed: &mut Parsed) {
    crate::app_warnings::warn(text, parsed);
}

//! Systems other than Linux and Windows.

mod unix;

pub(crate) use unix::{ADMINISTRATOR, conf_folder, mode};

use taupe_config::file::Parsed;

/// Folders in which `wg-quick` looks after [`conf_folder`]; the second is that of Homebrew on Apple
/// processors.
pub(crate) const FURTHER_CONF_FOLDERS: [&str; 2] =
    ["/usr/local/etc/wireguard", "/opt/homebrew/etc/wireguard"];

/// Length of the longest name of an interface in bytes: `IFNAMSIZ` without the final zero byte.
pub(crate) const LONGEST_NAME: usize = 15;

/// Adds nothing: processes are examined only on Linux.
pub(crate) fn warn_of_applications(_: &[u8], _: &mut Parsed) {}

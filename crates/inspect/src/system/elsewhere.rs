//! Systems other than Linux and Windows.

mod unix;

pub(crate) use unix::{ADMINISTRATOR, conf_folder, mode};

use taupe_config::file::Parsed;

/// Length of the longest name of an interface in bytes: `IFNAMSIZ` without the final zero byte.
pub(crate) const LONGEST_NAME: usize = 15;

/// Adds nothing: processes are examined only on Linux.
pub(crate) fn warn_of_applications(_: &[u8], _: &mut Parsed) {}

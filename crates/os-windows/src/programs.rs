//! Programs that are installed.

use std::path::PathBuf;
use windows_registry::LOCAL_MACHINE;

/// Where programs say under which name they can be started, for all users.
const APP_PATHS: &str = r"SOFTWARE\Microsoft\Windows\CurrentVersion\App Paths";

/// The programs that can be started by a name alone, as far as they are there: not all that are
/// installed, and none of a single user's.
#[must_use]
pub fn registered() -> Vec<PathBuf> {
    let Ok(all) = LOCAL_MACHINE.open(APP_PATHS) else {
        return Vec::new();
    };
    let Ok(names) = all.keys() else {
        return Vec::new();
    };
    let path = |name: String| {
        let text = all.open(name).ok()?.get_string("").ok()?;
        let path = PathBuf::from(text.trim_matches('"'));
        path.is_file().then_some(path)
    };
    names.filter_map(path).collect()
}

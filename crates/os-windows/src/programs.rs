//! Installed programs.

use std::path::PathBuf;
use windows_registry::LOCAL_MACHINE;

/// Registry key under which programs register a name for starting them, for all users.
const APP_PATHS: &str = r"SOFTWARE\Microsoft\Windows\CurrentVersion\App Paths";

/// Returns the programs that are registered for starting by name and whose files exist. Programs
/// without a registration and those of a single user are missing.
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

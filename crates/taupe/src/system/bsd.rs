//! FreeBSD and macOS.

mod unix;
mod without_devices;

pub(crate) use unix::{ADMINISTRATOR, CONF_FOLDER, DENIED, is_world_accessible, on_signal};
pub(crate) use unix::{on_signal as on_signal_confined, stdin, stdout};
pub(crate) use without_devices::{
    StateFolderError, killed_tunnels, notify_ready, notify_stopping, peer_names, sees_all_devices,
    tunnel_lines,
};

use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::{Path, PathBuf};
use taupe_config::file::File;

/// Does nothing: on this system the process keeps its rights.
pub(crate) fn confine_proxy(_: Option<&Path>, _: bool) {}

/// Disables core files, which would contain keys.
pub(crate) fn disable_core_files() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Everybody may lower the limit.
    let _ = setrlimit(Resource::Core, none);
}

/// Returns the folder for the state of peers, in the user's home. No state there is lost.
pub(crate) fn state_folder(
    _: &File,
) -> Result<(Option<PathBuf>, Option<String>), StateFolderError> {
    let folder = without_devices::user_folder("HOME", ".local/state/taupe")?;
    Ok((Some(folder), None))
}

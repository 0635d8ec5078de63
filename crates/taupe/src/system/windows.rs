//! Windows.

mod without_devices;

pub(crate) use without_devices::{
    StateFolderError, killed_tunnels, notify_ready, notify_stopping, peer_names, sees_all_devices,
    tunnel_lines,
};

use std::fs::File;
use std::io;
use std::os::windows::io::AsHandle;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use taupe_config::file;

pub(crate) use self::on_signal as on_signal_confined;

/// Does nothing: on this system the process keeps its rights.
pub(crate) fn confine_proxy(_: Option<&Path>, _: bool) {}

/// Does nothing: the system writes no core files.
pub(crate) fn disable_core_files() {}

/// The user who may configure all devices.
pub(crate) const ADMINISTRATOR: &str = "an elevated administrator";

/// Advice about a missing permission.
pub(crate) const DENIED: &str = "only administrators can do this; run it in a console that was \
                                 opened as administrator";

/// Folder of configuration files that are given by name, by default.
pub(crate) const CONF_FOLDER: &str = r"C:\ProgramData\Taupe";

/// Calls `end` on Ctrl-C and the like, for the rest of the process's life. There is no hangup.
///
/// # Errors
///
/// Fails if called twice, or if the system refuses.
pub(crate) fn on_signal(
    end: impl FnMut() + Send + 'static,
    _hangup: impl FnMut() + Send + 'static,
) -> io::Result<()> {
    let end = Mutex::new(end);
    taupe_os_windows::console::on_end(move || {
        let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
        end();
    })
}

/// Duplicates standard input. Reading it leaves no copy in the buffer of the standard library.
pub(crate) fn stdin() -> io::Result<File> {
    duplicate(&io::stdin())
}

/// Duplicates standard output. Writing it leaves no copy in the buffer of the standard library.
pub(crate) fn stdout() -> io::Result<File> {
    duplicate(&io::stdout())
}

fn duplicate(stream: &impl AsHandle) -> io::Result<File> {
    Ok(stream.as_handle().try_clone_to_owned()?.into())
}

/// Returns false: a new file inherits the rights of its folder, and usually is not accessible to
/// everyone.
pub(crate) fn is_world_accessible(_: &File) -> bool {
    false
}

/// Returns the folder for the state of peers, in the user's data. No state there is lost.
pub(crate) fn state_folder(
    _: &file::File,
) -> Result<(Option<PathBuf>, Option<String>), StateFolderError> {
    let folder = without_devices::user_folder("LOCALAPPDATA", "Taupe")?;
    Ok((Some(folder), None))
}

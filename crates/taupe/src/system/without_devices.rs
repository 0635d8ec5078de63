//! Systems on which Taupe has no devices that `taupe up` makes, and no service manager to notify.

use std::collections::HashMap;
use std::env;
use std::path::PathBuf;
use taupe_client::PublicKey;

/// There is no folder for the state of peers.
#[derive(Debug, thiserror::Error)]
#[error(
    "the variable {variable} is not the path of a folder, so there is no place for the state of \
     peers; set it to a folder that only this user can access"
)]
pub(crate) struct StateFolderError {
    variable: &'static str,
}

/// Returns a folder below that in a variable of the environment.
pub(super) fn user_folder(
    variable: &'static str,
    below: &str,
) -> Result<PathBuf, StateFolderError> {
    let data = env::var_os(variable).map(PathBuf::from);
    let data = data.filter(|path| path.is_absolute());
    data.map(|data| data.join(below))
        .ok_or(StateFolderError { variable })
}

/// Does nothing.
pub(crate) fn notify_ready() {}

/// Does nothing.
pub(crate) fn notify_stopping() {}

/// Returns true: there are no devices in the kernel, and a device itself refuses users without
/// rights.
pub(crate) fn sees_all_devices() -> bool {
    true
}

/// Returns nothing: there is no `taupe up`.
pub(crate) fn killed_tunnels(_: impl Fn(&str) -> bool) -> Vec<String> {
    Vec::new()
}

/// Returns nothing: there is no `taupe up`.
pub(crate) fn peer_names(_: &str) -> HashMap<PublicKey, String> {
    HashMap::new()
}

/// Returns nothing: there is no `taupe up`.
pub(crate) fn tunnel_lines(_: &str) -> Vec<(&'static str, String)> {
    Vec::new()
}

//! Folder for state that must outlast a tunnel, on systems other than Linux.

use std::env;
use std::path::PathBuf;
use taupe_config::file::File;

/// Environment variable with the folder of this user's data.
const VARIABLE: &str = if cfg!(windows) {
    "LOCALAPPDATA"
} else {
    "HOME"
};

/// Subfolder of that folder.
const BELOW: &str = if cfg!(windows) {
    "Taupe"
} else {
    ".local/state/taupe"
};

/// A folder of this user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StateDir(PathBuf);

#[derive(Debug, thiserror::Error)]
#[error(
    "{VARIABLE} is not the path of a folder, so there is no place for what must be remembered: \
     set it to one that is this user's alone"
)]
pub(crate) struct PlaceError;

impl StateDir {
    /// Finds the folder of this user.
    ///
    /// # Errors
    ///
    /// Fails if the environment does not contain it.
    pub(crate) fn find() -> Result<Self, PlaceError> {
        let data = env::var_os(VARIABLE).map(PathBuf::from);
        let data = data.filter(|path| path.is_absolute());
        data.map(|data| Self(data.join(BELOW))).ok_or(PlaceError)
    }

    /// Returns the folder as devices expect it.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        Some(self.0.clone())
    }

    /// Returns a warning about a temporary folder, which this system does not have.
    pub(crate) fn doubt(&self, _: &File) -> Option<String> {
        None
    }
}

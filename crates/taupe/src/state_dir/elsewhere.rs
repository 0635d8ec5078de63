//! Where a tunnel that anybody may run remembers what must outlast it, elsewhere than on Linux.

use std::env;
use std::path::PathBuf;
use taupe_config::file::File;

/// The variable that has the folder of this user's data.
const VARIABLE: &str = if cfg!(windows) {
    "LOCALAPPDATA"
} else {
    "HOME"
};

/// The place, below that folder.
const BELOW: &str = if cfg!(windows) {
    "Taupe"
} else {
    ".local/state/taupe"
};

/// The place: a folder of this user's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StateDir(PathBuf);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[error(
    "{VARIABLE} is not the path of a folder, so there is no place for what must be remembered: \
     set it to one that is this user's alone"
)]
pub(crate) struct PlaceError;

impl StateDir {
    /// This user's.
    ///
    /// # Errors
    ///
    /// When the environment does not say where it is.
    pub(crate) fn find() -> Result<Self, PlaceError> {
        let data = env::var_os(VARIABLE).map(PathBuf::from);
        let data = data.filter(|path| path.is_absolute());
        data.map(|data| Self(data.join(BELOW))).ok_or(PlaceError)
    }

    /// The folder, as devices are told.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        Some(self.0.clone())
    }

    /// What is to be said to who has peers that are to be remembered for good: it stays.
    pub(crate) fn doubt(&self, _: &File) -> Option<String> {
        None
    }
}

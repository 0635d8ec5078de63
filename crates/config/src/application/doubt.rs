//! Warnings about entries that may not match the intended program.

use core::fmt;

/// Warning that an entry may match another program than intended, or none, according to a look at
/// the system. `Display` is the reason; [`Self::fix`] says what to write instead. Paths are in
/// display form.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Doubt {
    /// No known executable has this name.
    Unknown {
        /// The name.
        name: String,
        /// The most similar name that is running or installed.
        nearest: Option<String>,
    },
    /// The path does not exist.
    Nothing {
        /// The path.
        path: String,
    },
    /// The entry names an executable, but the path is a folder.
    Folder {
        /// The path.
        path: String,
    },
    /// The path contains a symbolic link.
    Link {
        /// The path.
        path: String,
        /// The path without symbolic links.
        target: String,
    },
    /// The path is a script.
    Script {
        /// The path.
        path: String,
        /// The interpreter, which is the process's executable.
        interpreter: String,
    },
    /// The file of this name in `PATH` is a link to a file of another name.
    NameOfLink {
        /// Path of the link.
        path: String,
        /// The path without symbolic links.
        target: String,
    },
    /// The file of this name in `PATH` is a script.
    NameOfScript {
        /// Path of the script.
        path: String,
        /// The interpreter, which is the process's executable.
        interpreter: String,
    },
    /// The program is a client: a process that it does not start does the work.
    Client {
        /// Its name.
        name: String,
        /// Name of that process's program.
        worker: String,
    },
    /// The program starts programs of other names, which `Children = own` does not include.
    Starter {
        /// Its name.
        name: String,
    },
    /// The AppImage runs programs from its own mount, which `Children = own` does not include.
    AppImage {
        /// Its path.
        path: String,
    },
}

impl Doubt {
    /// Returns advice, in the imperative.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Unknown {
                nearest: Some(nearest),
                ..
            } => format!("write {nearest}, if that is meant"),
            Self::Unknown { .. } | Self::Nothing { .. } => {
                "correct it, or leave it if the application is still to be installed".into()
            }
            Self::Folder { path } => format!("write {path}/ for all executables below it"),
            Self::Link { target, .. } => format!("write {target}"),
            Self::NameOfLink { target, .. } => {
                let name = target.rsplit('/').next().unwrap_or_default();
                format!("write {name}, or {target}")
            }
            Self::Script { .. } | Self::NameOfScript { .. } => {
                "write what it starts, or the folder of that; while it runs, `readlink \
                 /proc/PID/exe` tells what it is"
                    .into()
            }
            Self::Client { worker, .. } => format!("write {worker} too"),
            Self::Starter { .. } | Self::AppImage { .. } => {
                "delete Children = own, or write the programs that it starts too".into()
            }
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, .. } => write!(
                f,
                "no program that runs, or is in PATH, /usr/lib or /opt, is called {name}: this \
                 matches nothing yet"
            ),
            Self::Nothing { path } => write!(f, "there is nothing at {path}"),
            Self::Folder { path } => write!(
                f,
                "{path} is a folder, and without a / at its end this matches nothing"
            ),
            Self::Link { path, target } => write!(
                f,
                "{path} leads through a symbolic link to {target}: other links lead there too, so \
                 this entry does not match it"
            ),
            Self::Script { path, interpreter } => write!(
                f,
                "{path} is a script: what runs is {interpreter}, which this does not match"
            ),
            Self::NameOfLink { path, target } => write!(
                f,
                "{path} is a symbolic link to {target}: other links lead there too, so this entry \
                 does not match it"
            ),
            Self::NameOfScript { path, interpreter } => write!(
                f,
                "{path} is a script: what runs is {interpreter}, and then what the script starts"
            ),
            Self::Client { name, worker } => write!(
                f,
                "{name} asks {worker} to do its work, and does not start it: this entry does not \
                 match {worker}"
            ),
            Self::Starter { name } => write!(
                f,
                "{name} starts other programs: because of Children = own, this entry does not \
                 match them"
            ),
            Self::AppImage { path } => write!(
                f,
                "{path} is an AppImage, and its programs run from a folder that it mounts in \
                 /tmp: because of Children = own, this entry does not match them"
            ),
        }
    }
}

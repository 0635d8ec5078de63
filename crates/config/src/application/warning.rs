//! Warnings about entries that may not match the intended program.

use core::fmt;

/// Warning that an entry may match another program than intended_key, or none, according to a look at
/// the system. `Display` is the reason; [`Self::fix`] says what to write instead. Paths are in
/// display form.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum AppWarning {
    /// No known executable has this name.
    UnknownName {
        /// The name.
        name: String,
        /// The most similar name that is running or installed.
        nearest: Option<String>,
    },
    /// The path does not exist.
    NoSuchPath {
        /// The path.
        path: String,
    },
    /// The entry names an executable, but the path is a folder.
    PathIsFolder {
        /// The path.
        path: String,
    },
    /// The path contains a symbolic link.
    PathHasLink {
        /// The path.
        path: String,
        /// The path without symbolic links.
        target: String,
    },
    /// The path is a script.
    PathIsScript {
        /// The path.
        path: String,
        /// The interpreter, which is the process's executable.
        interpreter: String,
    },
    /// The file of this name in `PATH` is a link to a file of another name.
    NameIsLink {
        /// Path of the link.
        path: String,
        /// The path without symbolic links.
        target: String,
    },
    /// The file of this name in `PATH` is a script.
    NameIsScript {
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
    Launcher {
        /// Its name.
        name: String,
    },
    /// The AppImage runs programs from its own mount, which `Children = own` does not include.
    AppImage {
        /// Its path.
        path: String,
    },
}

impl AppWarning {
    /// Returns advice, in the imperative.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::UnknownName {
                nearest: Some(nearest),
                ..
            } => format!("write {nearest} if that is meant"),
            Self::UnknownName { .. } | Self::NoSuchPath { .. } => {
                "correct it, or keep it if the application will be installed later".into()
            }
            Self::PathIsFolder { path } => format!("write {path}/ for all executables below it"),
            Self::PathHasLink { target, .. } => format!("write {target}"),
            Self::NameIsLink { target, .. } => {
                let name = target.rsplit('/').next().unwrap_or_default();
                format!("write {name}, or {target}")
            }
            Self::PathIsScript { .. } | Self::NameIsScript { .. } => {
                "write the program that the script starts, or its folder; while it runs, \
                 `readlink /proc/PID/exe` shows the program"
                    .into()
            }
            Self::Client { worker, .. } => format!("add {worker}"),
            Self::Launcher { .. } | Self::AppImage { .. } => {
                "delete Children = own, or add the programs that it starts".into()
            }
        }
    }
}

impl fmt::Display for AppWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownName { name, .. } => write!(
                f,
                "no program that runs, or is in PATH, /usr/lib or /opt, is called {name}: this \
                 matches nothing yet"
            ),
            Self::NoSuchPath { path } => write!(f, "{path} does not exist"),
            Self::PathIsFolder { path } => write!(
                f,
                "{path} is a folder: without a / at the end, this matches nothing"
            ),
            Self::PathHasLink { path, target } => write!(
                f,
                "{path} contains a symbolic link and leads to {target}: other links lead there too, \
                 so this entry does not match it"
            ),
            Self::PathIsScript { path, interpreter } => write!(
                f,
                "{path} is a script: the running program is {interpreter}, which this entry does \
                 not match"
            ),
            Self::NameIsLink { path, target } => write!(
                f,
                "{path} is a symbolic link to {target}: other links lead there too, so this entry \
                 does not match it"
            ),
            Self::NameIsScript { path, interpreter } => write!(
                f,
                "{path} is a script: the running program is {interpreter}, and then those that the \
                 script starts"
            ),
            Self::Client { name, worker } => write!(
                f,
                "{name} is a client of {worker}, which does the work and which it does not start: \
                 this entry does not match {worker}"
            ),
            Self::Launcher { name } => write!(
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

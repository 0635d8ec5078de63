//! What can make a person's idea of an application another than the kernel's.

use core::fmt;

/// What a look at the system says against an entry: it may match something else than
/// what is meant, or nothing. `Display` is the reason, [`Self::fix`] says what to
/// write instead. Paths are as they are to be shown.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Doubt {
    /// No executable is known that has this name.
    Unknown {
        /// The name.
        name: String,
        /// The most like it that runs or is installed.
        nearest: Option<String>,
    },
    /// Nothing is at a path.
    Nothing {
        /// The path.
        path: String,
    },
    /// What is written as an executable is a folder.
    Folder {
        /// The path.
        path: String,
    },
    /// A path leads through a symbolic link.
    Link {
        /// The path.
        path: String,
        /// Without links.
        target: String,
    },
    /// A path is a script's.
    Script {
        /// The path.
        path: String,
        /// What runs in its place.
        interpreter: String,
    },
    /// The file of this name in `PATH` is a link to one of another name.
    NameOfLink {
        /// Where it is.
        path: String,
        /// Without links.
        target: String,
    },
    /// The file of this name in `PATH` is a script.
    NameOfScript {
        /// Where it is.
        path: String,
        /// What runs in its place.
        interpreter: String,
    },
    /// A program asks another one, which it does not start, to do its work.
    Client {
        /// Its name.
        name: String,
        /// The other one's name.
        worker: String,
    },
    /// A program starts others of other names, and `Children = own` leaves these out.
    Starter {
        /// Its name.
        name: String,
    },
    /// An AppImage runs programs from a folder of its own, which `Children = own` leaves out.
    AppImage {
        /// Its path.
        path: String,
    },
}

impl Doubt {
    /// What to do, in the imperative.
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

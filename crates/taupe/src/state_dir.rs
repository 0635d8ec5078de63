//! Folder for state that must outlast a tunnel: handshake timestamps, and the peers that have made
//! post-quantum handshakes. Tunnels of users without root have folders of their own.

use rustix::process::geteuid;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use taupe_client::PostQuantum;
use taupe_config::file::File;
pub(crate) use taupe_sandbox::RendezvousError as PlaceError;
use taupe_sandbox::user_folder;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StateDir {
    /// Root's folder, which all devices share.
    System,
    /// Folder in another user's home (XDG Base Directory Specification).
    Home(PathBuf),
    /// Folder of a user without a home. Its content is lost when the system restarts.
    Session(PathBuf),
}

impl StateDir {
    /// Finds the folder of this user.
    ///
    /// # Errors
    ///
    /// Fails if the user has neither a home nor a folder of the session.
    pub(crate) fn find() -> Result<Self, PlaceError> {
        let user = geteuid();
        if user.is_root() {
            return Ok(Self::System);
        }
        match home(|name| env::var_os(name), user.as_raw()) {
            Some(home) => Ok(Self::Home(home)),
            None => user_folder().map(Self::Session),
        }
    }

    /// Returns the folder as devices expect it.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::System => None,
            Self::Home(path) | Self::Session(path) => Some(path.clone()),
        }
    }

    /// Returns a warning if the file has peers whose post-quantum state must be stored permanently,
    /// but the folder is temporary.
    pub(crate) fn warning(&self, file: &File) -> Option<String> {
        let prefer = Some(PostQuantum::Prefer);
        let Self::Session(path) = self else {
            return None;
        };
        let peer = file.peers.iter().find(|peer| peer.post_quantum == prefer)?;
        Some(format!(
            "the peer in line {}: PostQuantum = prefer: Taupe records its first post-quantum \
             handshake in {}, which is lost when the system restarts, because neither \
             XDG_STATE_HOME nor HOME is a folder of this user; afterwards an ordinary handshake is \
             possible again; PostQuantum = require excludes that",
            peer.line,
            path.display()
        ))
    }
}

/// Returns the folder in a home. The environment may belong to another user, as after `su`.
fn home(variable: impl Fn(&str) -> Option<OsString>, user: u32) -> Option<PathBuf> {
    let path = |name: &str| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute() && belongs_to(path, user))
    };
    let state = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")))?;
    Some(state.join("taupe"))
}

/// Checks whether a folder belongs to a user. For a missing folder, checks the one in which it
/// would be created.
fn belongs_to(path: &Path, user: u32) -> bool {
    let there = path.ancestors().find_map(|path| fs::metadata(path).ok());
    there.is_some_and(|found| found.uid() == user)
}

#[cfg(test)]
mod tests {
    use super::{StateDir, home};
    use rustix::process::geteuid;
    use std::path::Path;
    use taupe_config::file::{Dialect, parse};

    #[test]
    fn a_home_is_used_only_if_it_belongs_to_the_user() {
        let own = std::env::temp_dir().join(format!("taupe-kept-{}", std::process::id()));
        std::fs::create_dir(&own).expect("a folder");
        let user = geteuid().as_raw();
        let new = own.join("not/there/yet");
        let relative = Path::new("relative").to_owned();
        let state = |given: [Option<&Path>; 2], user: u32| {
            let variable = |name: &str| {
                let index = usize::from(name == "HOME");
                given[index].map(|path| path.as_os_str().to_owned())
            };
            home(variable, user)
        };
        let (in_new, in_own) = (new.join("taupe"), own.join(".local/state/taupe"));
        for (given, expected) in [
            ([Some(&*new), Some(&*own)], Some(&in_new)),
            ([None, Some(&*own)], Some(&in_own)),
            ([Some(&*relative), Some(&*own)], Some(&in_own)),
            ([None, Some(&*relative)], None),
            ([None, None], None),
        ] {
            assert_eq!(state(given, user).as_ref(), expected, "{given:?}");
            assert_eq!(state(given, user + 1), None, "another user's: {given:?}");
        }
        std::fs::remove_dir(&own).expect("removed");
    }

    #[test]
    fn a_temporary_folder_is_warned_of_if_post_quantum_is_preferred() {
        let file = |peer: &str| {
            let text = format!(
                "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
                 [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
                 AllowedIPs = ::/0\n{peer}\n"
            );
            parse(text.as_bytes(), Dialect::Taupe).file.expect("a file")
        };
        let session = StateDir::Session("/run/user/9/taupe".into());
        let text = session
            .warning(&file("PostQuantum = prefer"))
            .expect("a warning");
        assert!(
            text.contains("line 3") && text.contains("/run/user/9/taupe"),
            "{text}"
        );
        for peer in ["PostQuantum = require", ""] {
            assert_eq!(session.warning(&file(peer)), None);
        }
        for permanent in [
            StateDir::System,
            StateDir::Home("/home/u/.local/state/taupe".into()),
        ] {
            assert_eq!(permanent.warning(&file("PostQuantum = prefer")), None);
        }
    }
}

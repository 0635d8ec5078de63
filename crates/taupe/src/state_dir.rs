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
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::System => None,
            Self::Home(path) | Self::Session(path) => Some(path.clone()),
        }
    }

    /// Returns a warning if the file has peers whose post-quantum state must be stored permanently,
    /// but the folder is temporary.
    pub(crate) fn doubt(&self, file: &File) -> Option<String> {
        let prefer = Some(PostQuantum::Prefer);
        let Self::Session(path) = self else {
            return None;
        };
        let peer = file.peers.iter().find(|peer| peer.post_quantum == prefer)?;
        Some(format!(
            "the peer in line {}: PostQuantum = prefer: that it has been post-quantum is not kept \
             longer than {} is, since neither XDG_STATE_HOME nor HOME is a folder of this user's; \
             afterwards it may be led back to ordinary handshakes, which PostQuantum = require \
             excludes",
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
    fn a_home_is_the_users_own_or_none() {
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
    fn who_prefers_is_told_what_is_not_kept() {
        let file = |peer: &str| {
            let text = format!(
                "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
                 [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
                 AllowedIPs = ::/0\n{peer}\n"
            );
            parse(text.as_bytes(), Dialect::Taupe).file.expect("a file")
        };
        let session = StateDir::Session("/run/user/9/taupe".into());
        let told = session
            .doubt(&file("PostQuantum = prefer"))
            .expect("a doubt");
        assert!(
            told.contains("line 3") && told.contains("/run/user/9/taupe"),
            "{told}"
        );
        for peer in ["PostQuantum = require", ""] {
            assert_eq!(session.doubt(&file(peer)), None);
        }
        for kept in [
            StateDir::System,
            StateDir::Home("/home/u/.local/state/taupe".into()),
        ] {
            assert_eq!(kept.doubt(&file("PostQuantum = prefer")), None);
        }
    }
}

//! Check for root rights.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use taupe_adapter::Compatibility;
use taupe_inspect::is_root;

/// Reason why this process cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    /// The command does not run sudo itself, because a password prompt in a script would wait
    /// forever.
    #[error("this takes root; run it with sudo")]
    NotRoot,
    #[error("this takes root, and sudo cannot be run: {0}; run it as root")]
    Sudo(#[source] io::Error),
    #[error("this takes root, and the path of this program is unknown to sudo; run it as root")]
    UnknownPath,
}

/// Fails unless this process is root. Called as `wg-quick`, it runs itself again with sudo, as that
/// program does. In that case it only returns if sudo cannot be run.
pub(crate) fn require(
    compatibility: Compatibility,
    arguments: &[OsString],
) -> Result<(), RootError> {
    if is_root() {
        return Ok(());
    }
    match compatibility {
        Compatibility::Taupe => Err(RootError::NotRoot),
        Compatibility::WgQuick => Err(run_with_sudo(arguments)),
    }
}

fn run_with_sudo(arguments: &[OsString]) -> RootError {
    let mut arguments = arguments.iter();
    let name = arguments
        .next()
        .map(OsString::as_os_str)
        .unwrap_or_default();
    let Some(program) = path_of(name, std::env::var_os("PATH").as_deref()) else {
        return RootError::UnknownPath;
    };
    let prompt = "wg-quick must be run as root. Please enter the password for %u to continue: ";
    let mut sudo = Command::new("sudo");
    sudo.args(["-p", prompt, "--"]).arg(program).args(arguments);
    RootError::Sudo(sudo.exec())
}

/// Returns the path by which this program was called. The path is searched for as in a shell,
/// because /proc/self/exe lacks the name that selects the program to behave like.
fn path_of(name: &OsStr, folders: Option<&OsStr>) -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let is_this = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == this);
    if name.as_bytes().contains(&b'/') {
        return std::path::absolute(Path::new(name)).ok().filter(is_this);
    }
    std::env::split_paths(folders?)
        .map(|folder| folder.join(name))
        .find(is_this)
}

#[cfg(test)]
mod tests {
    use super::path_of;
    use std::ffi::{OsStr, OsString};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_name_by_which_the_program_is_called_is_preserved() {
        let name = format!("taupe-root-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let (with, without) = (folder.join("with"), folder.join("without"));
        fs::create_dir_all(&with).expect("folder");
        fs::create_dir_all(&without).expect("folder");
        fs::write(without.join("wg-quick"), "another program").expect("file");
        let link = with.join("wg-quick");
        symlink(std::env::current_exe().expect("this"), &link).expect("link");
        let both: OsString = std::env::join_paths([&without, &with]).expect("paths");

        let name = OsStr::new("wg-quick");
        assert_eq!(path_of(name, Some(&both)), Some(link.clone()));
        assert_eq!(path_of(link.as_os_str(), None), Some(link));
        assert_eq!(path_of(name, Some(without.as_os_str())), None);
        assert_eq!(path_of(name, None), None);
        assert_eq!(path_of(without.join("wg-quick").as_os_str(), None), None);
        fs::remove_dir_all(folder).expect("removed");
    }
}

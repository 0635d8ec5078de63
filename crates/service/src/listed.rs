//! Files that root lists for a group.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use taupe_os_linux::users::is_member;

use crate::name::TunnelName;

/// A folder of files that members of a group may bring up. The folder and the files must belong to root,
/// and nobody else may write to them. Anything else in the folder is ignored.
#[derive(Debug)]
pub struct Listed {
    folder: PathBuf,
    group: String,
}

impl Listed {
    /// Returns the list of a folder and a group.
    #[must_use]
    pub fn new(folder: &Path, group: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            group: group.to_owned(),
        }
    }

    /// Returns the path of a tunnel's file if a user may bring it up.
    pub(crate) fn for_user(&self, tunnel: &TunnelName, user: u32) -> Option<PathBuf> {
        (user == 0 || is_member(user, &self.group)).then(|| self.path(tunnel))?
    }

    /// Returns the path of a tunnel's file.
    pub(crate) fn path(&self, tunnel: &TunnelName) -> Option<PathBuf> {
        let path = self.folder.join(format!("{tunnel}.conf"));
        (is_roots(&self.folder, true) && is_roots(&path, false)).then_some(path)
    }

    /// Returns the tunnels that a user may bring up.
    pub(crate) fn names(&self, user: u32) -> Vec<TunnelName> {
        if user != 0 && !is_member(user, &self.group) {
            return Vec::new();
        }
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_suffix(".conf")?.parse::<TunnelName>().ok()
        });
        let mut names: Vec<_> = names.filter(|name| self.path(name).is_some()).collect();
        names.sort();
        names
    }
}

/// Returns true if this process's user owns a folder or regular file, and nobody else can write to it. A
/// symbolic link is neither.
fn is_roots(path: &Path, is_folder: bool) -> bool {
    fs::symlink_metadata(path).is_ok_and(|data| {
        let is_kind = if is_folder {
            data.is_dir()
        } else {
            data.is_file()
        };
        is_kind && data.uid() == geteuid().as_raw() && data.mode() & 0o022 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::Listed;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn only_files_that_nobody_else_can_change_are_listed() {
        let folder = std::env::temp_dir().join(format!("taupe-listed-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("folder");
        let mode = |path: &str, mode| {
            fs::set_permissions(folder.join(path), Permissions::from_mode(mode)).expect("mode");
        };
        mode("", 0o755);
        for name in ["office.conf", "writable.conf", "-x.conf", "notes.txt"] {
            fs::write(folder.join(name), "").expect("file");
            mode(name, 0o600);
        }
        mode("writable.conf", 0o620);
        symlink("/etc/passwd", folder.join("link.conf")).expect("link");
        fs::create_dir(folder.join("folder.conf")).expect("folder");
        let listed = Listed::new(&folder, "root");
        let names = |user| {
            listed
                .names(user)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(0), ["office"]);
        assert_eq!(
            names(65_534),
            Vec::<String>::new(),
            "nobody is not in the group root"
        );
        let path = |name: &str| listed.for_user(&name.parse().expect("a name"), 0);
        assert_eq!(path("office"), Some(folder.join("office.conf")));
        for name in ["writable", "link", "folder", "missing"] {
            assert_eq!(path(name), None, "{name}");
        }
        mode("", 0o777);
        assert_eq!(names(0), Vec::<String>::new(), "others can add files");
        fs::remove_dir_all(&folder).expect("removed");
    }
}

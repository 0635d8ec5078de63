//! A control group for a machine that systemd starts inside a sandbox.

use crate::error::{Error, Result};
use crate::process::wait_until;
use crate::sandbox::scratch;
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A control group with two subgroups: one is the root of the started machine's groups, the other
/// holds processes on this machine that are not started by it. Dropping it removes the groups; a
/// new one removes the remains of killed tests.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    before: PathBuf,
}

/// Mount point of the hierarchy.
const HIERARCHY: &str = "cgroup";

/// Prefix of the groups' names.
const PREFIX: &str = "taupe-lab-boot-";

impl Group {
    /// Creates it and moves this process to its second subgroup.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn new() -> Result<Self> {
        let root = scratch(HIERARCHY);
        let what = |path: &Path| path.display().to_string();
        fs::create_dir_all(&root).map_err(Error::io(what(&root)))?;
        mount("lab", &root, "cgroup2", MountFlags::empty(), None).map_err(Error::io("cgroup2"))?;
        for entry in fs::read_dir(&root)
            .map_err(Error::io(what(&root)))?
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                remove_empty(&entry.path());
            }
        }
        let own = fs::read_to_string("/proc/self/cgroup").map_err(Error::io("own cgroup"))?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let before = root.join(own.unwrap_or_default());
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let path = root.join(format!("{PREFIX}{}", now.as_nanos()));
        let guests = path.join("guests");
        fs::create_dir_all(&guests).map_err(Error::io(what(&guests)))?;
        let group = Self { path, before };
        move_to(&guests)?;
        Ok(group)
    }

    /// Returns the path of the group, in which a machine puts its first process.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = move_to(&self.before);
        // Killed processes need a moment to leave the group.
        let _ = wait_until("the end of the group", Duration::from_secs(10), || {
            remove_empty(&self.path);
            Ok(!self.path.exists())
        });
    }
}

/// Moves this process and its later children to a group.
fn move_to(group: &Path) -> Result<()> {
    fs::write(group.join("cgroup.procs"), "0").map_err(Error::io(group.display().to_string()))
}

/// Removes a group and its subgroups if they are empty.
fn remove_empty(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

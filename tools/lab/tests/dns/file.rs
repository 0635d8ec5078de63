//! `/etc/resolv.conf` on file systems with restrictions.

use crate::system::unmet;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use taupe_adapter::dns::{Dns, Paths, choose};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

const ORIGINAL: &str = "# of a container\nnameserver 198.51.100.1\noptions ndots:5\n";

/// A root folder on a file system of its own, of 64 KiB.
struct Root {
    folder: PathBuf,
    paths: Paths,
}

impl Root {
    fn new(name: &str) -> Result<Self> {
        let folder = scratch(name);
        for below in ["etc", "run", "proc/sys/kernel/random"] {
            fs::create_dir_all(folder.join(below)).map_err(Error::io(name))?;
        }
        let none = MountFlags::empty();
        mount("lab", folder.join("etc"), "tmpfs", none, Some(c"size=64k"))
            .map_err(Error::io("tmpfs"))?;
        fs::write(folder.join("proc/sys/kernel/random/boot_id"), "boot\n")
            .map_err(Error::io("boot_id"))?;
        let root = Self {
            paths: Paths::new(folder.clone(), "".as_ref(), None),
            folder,
        };
        fs::write(root.file(), ORIGINAL).map_err(Error::io("resolv.conf"))?;
        Ok(root)
    }

    fn etc(&self) -> PathBuf {
        self.folder.join("etc")
    }

    fn file(&self) -> PathBuf {
        self.etc().join("resolv.conf")
    }

    fn choose(&self, interface: &str, server: [u8; 4]) -> Result<Dns> {
        let chosen = choose(&self.paths, interface, &[server.into()], &[]).map_err(unmet)?;
        chosen.ok_or_else(|| Error::unmet("nothing was chosen"))
    }

    /// Returns the name, inode and content of each file.
    fn state(&self) -> Result<Vec<(PathBuf, u64, String)>> {
        let mut state = Vec::new();
        for entry in fs::read_dir(self.etc())
            .map_err(Error::io("etc"))?
            .flatten()
        {
            let path = entry.path();
            let inode = path.symlink_metadata().map_err(Error::io("etc"))?.ino();
            let text = fs::read_to_string(&path).unwrap_or_default();
            state.push((path, inode, text));
        }
        state.sort();
        Ok(state)
    }
}

/// As in containers, where the file is mounted from the host.
pub(crate) fn that_is_mounted() -> Result<()> {
    let root = Root::new("mounted")?;
    let below = root.state()?;
    let outer = scratch("outer");
    fs::write(&outer, ORIGINAL.replace("198", "203")).map_err(Error::io("outer"))?;
    mount_bind(&outer, root.file()).map_err(Error::io("mount"))?;
    let before = root.state()?;
    ensure!(before != below, "nothing is mounted");
    let servers = |what: &str| -> Result<()> {
        let text = fs::read_to_string(root.file()).map_err(Error::io("resolv.conf"))?;
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("nameserver"))
            .collect();
        ensure!(lines == [format!("nameserver {what}")], "{text}");
        ensure!(text.ends_with("options ndots:5\n"), "{text}");
        Ok(())
    };

    let (first, second) = (
        root.choose("wg0", [10, 0, 0, 1])?,
        root.choose("wg1", [10, 0, 0, 2])?,
    );
    first.apply(&root.paths).map_err(unmet)?;
    servers("10.0.0.1")?;
    second.apply(&root.paths).map_err(unmet)?;
    servers("10.0.0.2")?;
    first.undo(&root.paths).map_err(unmet)?;
    servers("10.0.0.2")?;
    second.undo(&root.paths).map_err(unmet)?;
    let after = root.state()?;
    ensure!(after == before, "{after:?} instead of {before:?}");
    Ok(())
}

/// As with `ip netns`, which mounts a file of its own into a namespace: the two share the folder,
/// and neither uses the other's original.
pub(crate) fn of_two_namespaces() -> Result<()> {
    let root = Root::new("shared")?;
    let other = scratch("other");
    fs::write(&other, ORIGINAL.replace("198", "203")).map_err(Error::io("other"))?;
    let inside = || mount_bind(&other, root.file()).map_err(Error::io("mount"));
    let outside = || unmount(root.file(), UnmountFlags::empty()).map_err(Error::io("unmount"));
    let (first, second) = (
        root.choose("wg0", [10, 0, 0, 1])?,
        root.choose("wg1", [10, 0, 0, 2])?,
    );
    let before = root.state()?;
    inside()?;
    let before_inside = root.state()?;

    second.apply(&root.paths).map_err(unmet)?;
    outside()?;
    first.apply(&root.paths).map_err(unmet)?;
    inside()?;
    let note = second.undo(&root.paths).map_err(unmet)?;
    ensure!(note.is_none(), "{note:?}");
    let text = fs::read_to_string(root.file()).map_err(Error::io("resolv.conf"))?;
    ensure!(text == ORIGINAL.replace("198", "203"), "{text}");

    second.apply(&root.paths).map_err(unmet)?;
    outside()?;
    first.undo(&root.paths).map_err(unmet)?;
    let text = fs::read_to_string(root.file()).map_err(Error::io("resolv.conf"))?;
    ensure!(text == ORIGINAL, "{text}");
    inside()?;
    second.undo(&root.paths).map_err(unmet)?;
    let after = root.state()?;
    ensure!(
        after == before_inside,
        "{after:?} instead of {before_inside:?}"
    );
    outside()?;
    let after = root.state()?;
    ensure!(after == before, "{after:?} instead of {before:?}");
    Ok(())
}

/// Each error names the obstacle, and nothing has changed.
pub(crate) fn that_cannot_change() -> Result<()> {
    step("read-only");
    let root = Root::new("readonly")?;
    let remount = |flags| mount_remount(root.etc(), flags, c"").map_err(Error::io("remount"));
    let dns = root.choose("wg0", [10, 0, 0, 1])?;
    remount(MountFlags::RDONLY)?;
    refused(&root, &dns, "its file system is read-only")?;
    remount(MountFlags::empty())?;
    works(&root, &dns)?;

    step("full");
    let root = Root::new("full")?;
    let dns = root.choose("wg0", [10, 0, 0, 1])?;
    let filler = root.etc().join("filler");
    let mut file = File::create(&filler).map_err(Error::io("filler"))?;
    while file.write_all(&[1; 4096]).is_ok() {}
    refused(&root, &dns, "free some space")?;
    fs::remove_file(&filler).map_err(Error::io("filler"))?;
    drop(file);
    works(&root, &dns)?;

    step("immutable");
    let root = Root::new("immutable")?;
    let dns = root.choose("wg0", [10, 0, 0, 1])?;
    set_immutable(&root.file(), true)?;
    refused(&root, &dns, "`chattr -i -a ")?;
    set_immutable(&root.file(), false)?;
    works(&root, &dns)?;

    step("immutable while up");
    let before = root.state()?;
    dns.apply(&root.paths).map_err(unmet)?;
    set_immutable(&root.file(), true)?;
    let error = dns
        .undo(&root.paths)
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(error.contains("`chattr -i -a "), "{error}");
    set_immutable(&root.file(), false)?;
    dns.undo(&root.paths).map_err(unmet)?;
    ensure!(root.state()? == before, "{:?}", root.state()?);
    Ok(())
}

fn refused(root: &Root, dns: &Dns, why: &str) -> Result<()> {
    let before = root.state()?;
    let error = dns
        .apply(&root.paths)
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(
        error.contains("etc/resolv.conf") && error.contains(why),
        "{error}"
    );
    let after = root.state()?;
    ensure!(after == before, "{after:?} instead of {before:?}");
    // Undoing a step that was not done does nothing.
    let note = dns.undo(&root.paths).map_err(unmet)?;
    ensure!(note.is_none() && root.state()? == before, "{note:?}");
    Ok(())
}

fn works(root: &Root, dns: &Dns) -> Result<()> {
    let before = root.state()?;
    dns.apply(&root.paths).map_err(unmet)?;
    ensure!(root.state()? != before, "nothing was changed");
    dns.undo(&root.paths).map_err(unmet)?;
    ensure!(root.state()? == before, "{:?}", root.state()?);
    Ok(())
}

/// Sets the attribute of `chattr +i`. A tmpfs supports it since Linux 6.6.
fn set_immutable(path: &Path, on: bool) -> Result<()> {
    let file = File::open(path).map_err(Error::io("resolv.conf"))?;
    let mut flags = ioctl_getflags(&file).map_err(Error::io("flags"))?;
    flags.set(IFlags::IMMUTABLE, on);
    ioctl_setflags(&file, flags).map_err(Error::io("chattr"))
}

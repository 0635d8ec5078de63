//! Where a tunnel's maps and links are pinned, so that they outlive the daemon.
//!
//! `taupe/IFACE-COOKIE/` in a BPF file system has a file for each map, and `links/` one for
//! each link. COOKIE is the network namespace's: the same name can be another
//! tunnel's there.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

use crate::fault::Fault;
use crate::syscall;

/// Where a BPF file system is on most systems.
const SYSTEM: &str = "/sys/fs/bpf";

/// Where one is mounted where there is none. Not over the system's: `ip netns exec`
/// gives every command a `/sys` of its own, which ends with it.
const OWN: &str = "/run/taupe/bpf";

/// `BPF_FS_MAGIC`.
const MAGIC: u32 = 0xcafe_4a11;

/// A tunnel's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pins {
    directory: PathBuf,
}

impl Pins {
    /// That of the tunnel of this name in the network namespace with this cookie.
    #[must_use]
    pub fn of(interface: &str, cookie: u64) -> Self {
        // The file system takes no dot in a name.
        let name = interface.replace('.', "%2e");
        let directory = Path::new(root()).join("taupe");
        Self {
            directory: directory.join(format!("{name}-{cookie:x}")),
        }
    }

    /// Those of all tunnels, in every network namespace. What cannot be listed has
    /// none.
    pub fn all() -> impl Iterator<Item = Self> {
        let entries = fs::read_dir(Path::new(root()).join("taupe"));
        entries.into_iter().flatten().flatten().map(|entry| Self {
            directory: entry.path(),
        })
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether anything is pinned.
    #[must_use]
    pub fn exist(&self) -> bool {
        self.directory.exists()
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.directory.join("links")
    }

    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.links().join(name)
    }

    /// Makes the directory, and mounts the file system if nobody has.
    pub(crate) fn create(&self) -> Result<(), Fault> {
        if !has_pins(root()) {
            fs::create_dir_all(OWN).map_err(Fault::call(OWN))?;
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            mount("bpf", OWN, "bpf", flags, None)
                .map_err(Fault::call(format!("mounting a BPF file system on {OWN}")))?;
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.links())
            .map_err(Fault::call(self.links().display().to_string()))
    }

    /// Keeps other processes from changing the rules, until it is dropped.
    pub(crate) fn lock(&self) -> Result<File, Fault> {
        let failed = || Fault::call(format!("locking {}", self.directory.display()));
        let directory = File::open(&self.directory).map_err(failed())?;
        directory.lock().map_err(failed())?;
        Ok(directory)
    }

    /// Removes everything: links end, and with them what holds a chosen
    /// application's packets back. Removing what is not there succeeds. Filters of
    /// kernels without tcx are not pinned and stay.
    pub(crate) fn remove(&self) -> Result<(), Fault> {
        for directory in [self.links(), self.directory.clone()] {
            let failed = || Fault::call(directory.display().to_string());
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed()(error)),
            };
            for entry in entries {
                remove(&entry.map_err(failed())?.path())?;
            }
            fs::remove_dir(&directory).map_err(failed())?;
        }
        Ok(())
    }
}

/// Where pins are, or will be once a file system is mounted there.
fn root() -> &'static str {
    if has_pins(SYSTEM) { SYSTEM } else { OWN }
}

/// Whether a BPF file system is mounted there.
fn has_pins(path: &str) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u32 == MAGIC)
}

/// Removes a pin, if it is there; a link ends at once.
pub(crate) fn remove(path: &Path) -> Result<(), Fault> {
    if let Ok(object) = syscall::open(path) {
        // It may be a map, or a link that ends when nobody refers to it any more.
        let _ = syscall::detach(object.as_fd());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Fault::call(path.display().to_string())(error))
        }
        _ => Ok(()),
    }
}

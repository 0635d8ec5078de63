//! Where a tunnel's maps and links are pinned, so that they outlive the daemon.
//!
//! `taupe/IFACE-COOKIE/` in a BPF file system has a file for each map, and `links/` one for
//! each link. COOKIE is the network namespace's: the same name can be another
//! tunnel's there.
//!
//! The file system is one that the first process sees. `ip netns exec`, containers
//! and units of systemd have mounts of their own, which end with their last process,
//! and with them whatever is pinned there.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::fault::Fault;
use crate::syscall;

/// The root directory of the first process, whoever asks.
const FIRST: &str = "/proc/1/root";

/// Where a BPF file system is on most systems.
const SYSTEM: &str = "/proc/1/root/sys/fs/bpf";

/// Where one is mounted where there is none, and the folder around it.
const OWN: &str = "/proc/1/root/run/taupe/bpf";
const OWN_PARENT: &str = "/proc/1/root/run/taupe";

/// Whoever can open a directory can lock it, so root alone can.
const PRIVATE: u32 = 0o700;

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
        let name = format!("{}-{cookie:x}", interface.replace('.', "%2e"));
        let within = |root| Self {
            directory: Path::new(root).join("taupe").join(&name),
        };
        // The system's may have been mounted after these were made.
        let mut roots = [OWN, SYSTEM].into_iter().filter(|root| has_pins(root));
        let made = roots.clone().map(within).find(Self::exist);
        made.unwrap_or_else(|| within(roots.next_back().unwrap_or(OWN)))
    }

    /// Those of all tunnels, in every network namespace. What cannot be listed has
    /// none.
    pub fn all() -> impl Iterator<Item = Self> {
        let entries = [OWN, SYSTEM].map(|root| fs::read_dir(Path::new(root).join("taupe")));
        let entries = entries.into_iter().flatten().flatten().flatten();
        entries.map(|entry| Self {
            directory: entry.path(),
        })
    }

    /// The name of the tunnel's interface.
    #[must_use]
    pub fn interface(&self) -> Option<String> {
        let name = self.directory.file_name()?.to_str()?;
        Some(name.rsplit_once('-')?.0.replace("%2e", "."))
    }

    /// The cookie of the network namespace that they act in.
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        let name = self.directory.file_name()?.to_str()?;
        u64::from_str_radix(name.rsplit_once('-')?.1, 16).ok()
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

    /// Makes the directory, unless it is there, and keeps other processes from it until what
    /// is returned is dropped.
    pub(crate) fn take(&self) -> Result<File, Fault> {
        loop {
            self.create()?;
            // Somebody may have removed it meanwhile.
            if let Some(directory) = self.when_there(File::lock)? {
                return Ok(directory);
            }
        }
    }

    /// Keeps other processes from making or removing anything, until what is returned is
    /// dropped; `None` where there is nothing.
    pub(crate) fn keep(&self) -> Result<Option<File>, Fault> {
        self.when_there(File::lock_shared)
    }

    /// The directory, locked, unless it was removed before.
    fn when_there(&self, lock: fn(&File) -> io::Result<()>) -> Result<Option<File>, Fault> {
        let locked = |path: &Path| -> Result<Option<File>, Fault> {
            let failed = || Fault::call(format!("locking {}", path.display()));
            let directory = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    reach_first()?;
                    return Err(failed()(error));
                }
                directory => directory.map_err(failed())?,
            };
            lock(&directory).map_err(failed())?;
            // A directory that has been removed has no names.
            let is_there = directory.metadata().map_err(failed())?.nlink() > 0;
            Ok(is_there.then_some(directory))
        };
        // A gate, which who waits for all to go keeps shut: they might never be gone all at
        // once, where others come in meanwhile.
        let Some(_gate) = locked(&self.links())? else {
            return Ok(None);
        };
        locked(&self.directory)
    }

    /// Makes the directory, and mounts the file system if nobody has.
    fn create(&self) -> Result<(), Fault> {
        if !self.exist() && ![OWN, SYSTEM].into_iter().any(has_pins) {
            reach_first()?;
            mount_own().map_err(Fault::call(format!("mounting a BPF file system on {OWN}")))?;
        }
        let failed = |path: &Path| Fault::call(path.display().to_string());
        // Where anybody may write to the file system, somebody may have been here before.
        if let Some(all) = self.directory.parent() {
            keep_private(all).map_err(failed(all))?;
        }
        DirBuilder::new()
            .recursive(true)
            .mode(PRIVATE)
            .create(self.links())
            .map_err(failed(&self.links()))
    }

    /// Keeps other processes from changing the rules, until it is dropped.
    pub(crate) fn lock(&self) -> Result<File, Fault> {
        let directory = self.when_there(File::lock)?;
        directory.ok_or_else(|| {
            let gone = io::Error::from(io::ErrorKind::NotFound);
            Fault::call(format!("locking {}", self.directory.display()))(gone)
        })
    }

    /// Removes what is pinned; the directories stay.
    pub(crate) fn clear(&self) -> Result<(), Fault> {
        for directory in [self.links(), self.directory.clone()] {
            let failed = || Fault::call(directory.display().to_string());
            for entry in fs::read_dir(&directory).map_err(failed())? {
                let entry = entry.map_err(failed())?.path();
                if !entry.is_dir() {
                    remove(&entry)?;
                }
            }
        }
        Ok(())
    }

    /// Removes everything: links end, and with them what holds a chosen
    /// application's packets back. Removing what is not there succeeds. Filters of
    /// kernels without tcx are not pinned and stay.
    pub(crate) fn remove(&self) -> Result<(), Fault> {
        for directory in [self.links(), self.directory.clone()] {
            // A device that is about to end may yet put a filter back.
            let mut tries = 0;
            while let Err(error) = empty(&directory)? {
                tries += 1;
                if tries == 5 || error.kind() != io::ErrorKind::DirectoryNotEmpty {
                    return Err(Fault::call(directory.display().to_string())(error));
                }
            }
        }
        Ok(())
    }
}

/// Removes what is in a directory, and then the directory, unless there is none.
fn empty(directory: &Path) -> Result<io::Result<()>, Fault> {
    let failed = || Fault::call(directory.display().to_string());
    match fs::read_dir(directory) {
        Ok(entries) => {
            for entry in entries {
                remove(&entry.map_err(failed())?.path())?;
            }
            Ok(fs::remove_dir(directory))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ok(())),
        Err(error) => Err(failed()(error)),
    }
}

/// The cookies of all network namespaces, as `taupe_namespaces` lists them; `None` if
/// the list has no end.
pub(crate) fn namespaces(listed: &[u8]) -> Option<BTreeSet<u64>> {
    let (words, _) = listed.as_chunks::<8>();
    let (entries, _) = words.as_chunks::<2>();
    let [cookies @ .., [is_end, _]] = entries else {
        return None;
    };
    let cookies = cookies
        .iter()
        .map(|[_, cookie]| u64::from_ne_bytes(*cookie));
    (u64::from_ne_bytes(*is_end) == 1).then(|| cookies.collect())
}

/// Whether there is a place for pins, or can be.
pub(crate) fn have_place() -> Result<(), Fault> {
    match [OWN, SYSTEM].into_iter().any(has_pins) {
        true => Ok(()),
        false => reach_first(),
    }
}

/// What holds packets back would go with this process, if it were mounted elsewhere.
fn reach_first() -> Result<(), Fault> {
    let reached = fs::metadata(FIRST).map(drop);
    reached.map_err(|source| Fault::Unreachable {
        path: FIRST,
        source,
    })
}

/// Makes a directory for root alone, unless it is there and is.
fn keep_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != 0 {
        return Err(io::Error::other(
            "it is not a directory of root's; remove it, since its owner could keep a tunnel from \
             coming up",
        ));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

/// Mounts a BPF file system among the first process's mounts.
fn mount_own() -> io::Result<()> {
    let mounting = || -> io::Result<()> {
        // SAFETY: only this thread's working directory, root and file mode mask
        // are parted from the other threads', and it does nothing but what is here.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        let first = fs::File::open("/proc/1/ns/mnt")?;
        move_into_link_name_space(first.as_fd(), Some(LinkNameSpaceType::Mount))?;
        for folder in [OWN_PARENT, OWN] {
            keep_private(Path::new(folder))?;
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("bpf", OWN, "bpf", flags, Some(c"mode=0700"))?;
        Ok(())
    };
    // A thread stays in the mount namespace that it has moved into.
    std::thread::Builder::new()
        .spawn(mounting)?
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread has panicked")))
}

/// Whether a BPF file system is mounted there.
fn has_pins(path: &str) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u32 == MAGIC)
}

/// Pins a link in the place of another one, which ends only then.
pub(crate) fn replace(link: BorrowedFd<'_>, path: &Path) -> Result<(), Fault> {
    let failed = |path: &Path| Fault::call(format!("pinning {}", path.display()));
    let mut new = path.as_os_str().to_owned();
    new.push("-new");
    let new = PathBuf::from(new);
    remove(&new)?;
    syscall::pin(link, &new).map_err(failed(&new))?;
    fs::rename(&new, path).map_err(failed(path))
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

#[cfg(test)]
mod tests {
    use super::namespaces;

    #[test]
    fn a_list_that_was_cut_tells_nothing() {
        let list = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let whole = namespaces(&list(&[0, 4096, 0, 7, 1, 7])).expect("an end");
        assert_eq!(whole.into_iter().collect::<Vec<_>>(), [7, 4096]);
        assert_eq!(namespaces(&list(&[0, 4096, 0, 7])), None);
        assert_eq!(namespaces(&[]), None);
    }
}

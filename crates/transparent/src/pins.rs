//! The pins of a tunnel's maps and links, which keep them after the daemon has ended.
//!
//! The directory `taupe/IFACE-COOKIE/` of a BPF file system has a file for each map, and its
//! subdirectory `links/` one for each link. COOKIE is the cookie of the network namespace: another
//! namespace can have a tunnel of the same name.
//!
//! While the programs of another version give way to this one's, their directory has the name
//! `IFACE-COOKIE:NUMBER`. No interface has a colon in its name.
//!
//! The BPF file system is one that PID 1 sees. `ip netns exec`, containers and systemd units have
//! mount namespaces of their own. A BPF file system mounted there would end with the last process
//! of that namespace, and its pins with it.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::TransparentError;
use crate::records::{self, NamespaceRecord};
use crate::syscall;

/// The root directory of PID 1, the same for every caller.
const INIT_ROOT: &str = "/proc/1/root";

/// The usual mount point of a BPF file system.
const SYSTEM_BPFFS: &str = "/proc/1/root/sys/fs/bpf";

/// Mount point that Taupe uses if the system has none, and its parent directory.
const OWN_BPFFS: &str = "/proc/1/root/run/taupe/bpf";
const OWN_BPFFS_PARENT: &str = "/proc/1/root/run/taupe";

/// Only root may open the directory, since whoever can open it can lock it.
const PRIVATE: u32 = 0o700;

/// `BPF_FS_MAGIC`.
const MAGIC: u32 = 0xcafe_4a11;

/// The directory of a tunnel's pins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pins {
    directory: PathBuf,
}

impl Pins {
    /// Returns the pins of the tunnel of this name in the network namespace with this cookie.
    #[must_use]
    pub fn of(interface: &str, cookie: u64) -> Self {
        // A BPF file system allows no dot in a name.
        let name = format!("{}-{cookie:x}", interface.replace('.', "%2e"));
        let within = |root| Self {
            directory: Path::new(root).join("taupe").join(&name),
        };
        // The system may have mounted its own after Taupe had created pins in [`OWN_BPFFS`].
        let mut roots = [OWN_BPFFS, SYSTEM_BPFFS]
            .into_iter()
            .filter(|root| is_bpffs(root));
        let made = roots.clone().map(within).find(Self::exist);
        let made = made.or_else(|| roots.clone().find_map(|root| within(root).earlier().next()));
        made.unwrap_or_else(|| within(roots.next_back().unwrap_or(OWN_BPFFS)))
    }

    /// Returns the other directories of this tunnel, which [`set_aside`](Self::set_aside) has renamed.
    pub(crate) fn earlier(&self) -> impl Iterator<Item = Self> + use<> {
        let own = self.clone();
        let entries = self.directory.parent().map(fs::read_dir);
        let entries = entries.into_iter().flatten().flatten().flatten();
        let all = entries.map(|entry| Self {
            directory: entry.path(),
        });
        all.filter(move |pins| {
            let is_of_tunnel = (pins.interface(), pins.cookie()) == (own.interface(), own.cookie());
            pins.is_aside() && is_of_tunnel && *pins != own
        })
    }

    /// Returns true if [`set_aside`](Self::set_aside) has renamed the directory.
    fn is_aside(&self) -> bool {
        let name = self.directory.file_name();
        name.is_some_and(|name| name.as_encoded_bytes().contains(&b':'))
    }

    /// Renames the directory, unless it is renamed already, so that the tunnel can have new pins
    /// while these programs still act. Returns the pins with the tunnel's own name, which do not
    /// exist.
    pub(crate) fn set_aside(self) -> Result<Self, TransparentError> {
        let name = self.directory.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        if let Some((own, _)) = name.split_once(':') {
            let directory = self.directory.with_file_name(own);
            return Ok(Self { directory });
        }
        let mut names =
            (0_u32..).map(|number| self.directory.with_file_name(format!("{name}:{number}")));
        if let Some(aside) = names.find(|aside| !aside.exists()) {
            let failed = TransparentError::call(format!("renaming {}", self.directory.display()));
            fs::rename(&self.directory, aside).map_err(failed)?;
        }
        Ok(self)
    }

    /// Returns the pins of the tunnel of this name in the calling thread's network namespace.
    pub(crate) fn here(interface: &str) -> Result<Self, TransparentError> {
        Ok(Self::of(interface, network_cookie()?))
    }

    /// Returns the pins of all tunnels, in every network namespace. Skips a directory that cannot
    /// be listed.
    pub fn all() -> impl Iterator<Item = Self> {
        let entries =
            [OWN_BPFFS, SYSTEM_BPFFS].map(|root| fs::read_dir(Path::new(root).join("taupe")));
        let entries = entries.into_iter().flatten().flatten().flatten();
        entries.map(|entry| Self {
            directory: entry.path(),
        })
    }

    /// Returns the name of the tunnel's interface.
    #[must_use]
    pub fn interface(&self) -> Option<String> {
        let name = self.directory.file_name()?.to_str()?;
        Some(name.rsplit_once('-')?.0.replace("%2e", "."))
    }

    /// Returns the cookie of the tunnel's network namespace.
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        let name = self.directory.file_name()?.to_str()?;
        let cookie = name.rsplit_once('-')?.1.split(':').next()?;
        u64::from_str_radix(cookie, 16).ok()
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns true if the tunnel has a directory of pins.
    #[must_use]
    pub fn exist(&self) -> bool {
        self.directory.exists()
    }

    /// Returns the path of a map's pin.
    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.directory.join("links")
    }

    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.links().join(name)
    }

    /// Returns true if a tunnel has pinned the link with this ID as a filter of an interface. Skips
    /// directories that cannot be listed.
    pub(crate) fn any_has_filter(id: u32, interface: u32) -> bool {
        let prefix = format!("{interface}-");
        let directories = Self::all().flat_map(|pins| fs::read_dir(pins.links()));
        let mut entries = directories.flatten().flatten();
        entries.any(|entry| {
            let name = entry.file_name();
            let link = || syscall::open(&entry.path()).and_then(|link| syscall::id(link.as_fd()));
            name.as_encoded_bytes().starts_with(prefix.as_bytes())
                && link().is_ok_and(|found| found == id)
        })
    }

    /// Creates the directory if necessary and locks it exclusively until the returned file is
    /// dropped.
    pub(crate) fn create_and_lock(&self) -> Result<File, TransparentError> {
        loop {
            self.create()?;
            // Another process may have removed the directory between the two calls.
            if let Some(directory) = self.lock_existing(File::lock)? {
                return Ok(directory);
            }
        }
    }

    /// Takes a shared lock, so that no other process can create or remove pins until the returned
    /// file is dropped. Returns `None` if there is no directory.
    pub(crate) fn lock_shared(&self) -> Result<Option<File>, TransparentError> {
        self.lock_existing(File::lock_shared)
    }

    /// Locks the directory. Returns `None` if it does not exist, or was removed or renamed before it
    /// was locked.
    fn lock_existing(
        &self,
        lock: fn(&File) -> io::Result<()>,
    ) -> Result<Option<File>, TransparentError> {
        let locked = |path: &Path| -> Result<Option<File>, TransparentError> {
            let failed = || TransparentError::call(format!("locking {}", path.display()));
            let directory = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    check_init_root()?;
                    return Err(failed()(error));
                }
                directory => directory.map_err(failed())?,
            };
            lock(&directory).map_err(failed())?;
            let locked = directory.metadata().map_err(failed())?;
            let is_there = fs::metadata(path).is_ok_and(|now| now.ino() == locked.ino());
            Ok(is_there.then_some(directory))
        };
        // A process that waits for the exclusive lock holds `links/` meanwhile, so no new reader
        // gets in before it. Otherwise readers that overlap could make it wait for ever.
        let Some(_queue_lock) = locked(&self.links())? else {
            return Ok(None);
        };
        locked(&self.directory)
    }

    /// Creates the directory, and mounts a BPF file system if there is none.
    fn create(&self) -> Result<(), TransparentError> {
        if !self.exist() && ![OWN_BPFFS, SYSTEM_BPFFS].into_iter().any(is_bpffs) {
            check_init_root()?;
            mount_own().map_err(TransparentError::call(format!(
                "mounting a BPF file system on {OWN_BPFFS}"
            )))?;
        }
        let failed = |path: &Path| TransparentError::call(path.display().to_string());
        // If anybody may write to the file system, another user may have created the directory.
        if let Some(all) = self.directory.parent() {
            create_private(all).map_err(failed(all))?;
        }
        DirBuilder::new()
            .recursive(true)
            .mode(PRIVATE)
            .create(self.links())
            .map_err(failed(&self.links()))
    }

    /// Locks out other processes that would change the rules, until the returned file is dropped.
    pub(crate) fn lock_exclusive(&self) -> Result<File, TransparentError> {
        let directory = self.lock_existing(File::lock)?;
        directory.ok_or_else(|| {
            let gone = io::Error::from(io::ErrorKind::NotFound);
            TransparentError::call(format!("locking {}", self.directory.display()))(gone)
        })
    }

    /// Removes all pins but not the directories.
    pub(crate) fn clear(&self) -> Result<(), TransparentError> {
        for directory in [self.links(), self.directory.clone()] {
            let failed = || TransparentError::call(directory.display().to_string());
            for entry in fs::read_dir(&directory).map_err(failed())? {
                let entry = entry.map_err(failed())?.path();
                if !entry.is_dir() {
                    remove(&entry)?;
                }
            }
        }
        Ok(())
    }

    /// Removes all pins and the directory. The links end, and with them the kill switch. Succeeds
    /// if nothing is there. On kernels without tcx filters are not pinned and stay.
    pub(crate) fn remove(&self) -> Result<(), TransparentError> {
        for directory in [self.links(), self.directory.clone()] {
            // A daemon that is about to end may still pin a filter meanwhile.
            let mut tries = 0;
            while let Err(error) = empty(&directory)? {
                tries += 1;
                if tries == 5 || error.kind() != io::ErrorKind::DirectoryNotEmpty {
                    return Err(TransparentError::call(directory.display().to_string())(
                        error,
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns the cookie of the calling thread's network namespace.
pub(crate) fn network_cookie() -> Result<u64, TransparentError> {
    let cookie = taupe_os_linux::namespace::network_id();
    cookie.map_err(TransparentError::call("asking for the network namespace"))
}

/// Removes the files in a directory, then the directory. Succeeds if it does not exist.
fn empty(directory: &Path) -> Result<io::Result<()>, TransparentError> {
    let failed = || TransparentError::call(directory.display().to_string());
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

/// Parses the cookies of all network namespaces from the output of `taupe_namespaces`. Returns
/// `None` if the end of the list is missing.
pub(crate) fn namespaces(listed: &[u8]) -> Option<BTreeSet<u64>> {
    let records: Vec<NamespaceRecord> = records::parse(listed).collect();
    let (end, namespaces) = records.split_last()?;
    let cookies = namespaces.iter().map(|namespace| namespace.cookie);
    (end.is_end == 1).then(|| cookies.collect())
}

/// Checks that a BPF file system for the pins exists or can be mounted.
pub(crate) fn check_mount_point() -> Result<(), TransparentError> {
    match [OWN_BPFFS, SYSTEM_BPFFS].into_iter().any(is_bpffs) {
        true => Ok(()),
        false => check_init_root(),
    }
}

/// Checks that the root directory of PID 1 is accessible. Pins anywhere else could end with this
/// process, and the kill switch with them.
fn check_init_root() -> Result<(), TransparentError> {
    let reached = fs::metadata(INIT_ROOT).map(drop);
    reached.map_err(|source| TransparentError::InitRootInaccessible {
        path: INIT_ROOT,
        source,
    })
}

/// Creates a directory that only root can access, or restricts an existing one that root owns.
fn create_private(path: &Path) -> io::Result<()> {
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

/// Mounts a BPF file system in the mount namespace of PID 1.
fn mount_own() -> io::Result<()> {
    let mounting = || -> io::Result<()> {
        // SAFETY: only this thread's working directory, root and file mode mask are separated from
        // those of the other threads, and the thread runs only this closure.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        let first = fs::File::open("/proc/1/ns/mnt")?;
        move_into_link_name_space(first.as_fd(), Some(LinkNameSpaceType::Mount))?;
        for folder in [OWN_BPFFS_PARENT, OWN_BPFFS] {
            create_private(Path::new(folder))?;
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("bpf", OWN_BPFFS, "bpf", flags, Some(c"mode=0700"))?;
        Ok(())
    };
    // A thread of its own, since it stays in the mount namespace that it has joined.
    std::thread::Builder::new()
        .spawn(mounting)?
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread has panicked")))
}

/// Returns true if a BPF file system is mounted at the path.
fn is_bpffs(path: &str) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u32 == MAGIC)
}

/// Pins a link in place of another one, which ends only after that.
pub(crate) fn replace(link: BorrowedFd<'_>, path: &Path) -> Result<(), TransparentError> {
    let failed = |path: &Path| TransparentError::call(format!("pinning {}", path.display()));
    let mut new = path.as_os_str().to_owned();
    new.push("-new");
    let new = PathBuf::from(new);
    remove(&new)?;
    syscall::pin(link, &new).map_err(failed(&new))?;
    fs::rename(&new, path).map_err(failed(path))
}

/// Removes a pin if it exists. A link is detached at once.
pub(crate) fn remove(path: &Path) -> Result<(), TransparentError> {
    if let Ok(object) = syscall::open(path) {
        // Detaching fails for a map, and for a link type that ends with its last reference.
        let _ = syscall::detach(object.as_fd());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(TransparentError::call(path.display().to_string())(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Pins, namespaces};
    use std::fs;

    #[test]
    fn pins_set_aside_still_name_their_tunnel() {
        let folder = std::env::temp_dir().join(format!("taupe-pins-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let of = |name: &str| Pins {
            directory: folder.join(name),
        };
        let (own, other) = (of("home-2-1f"), of("home-1f"));
        for expected in ["home-2-1f:0", "home-2-1f:1"] {
            fs::create_dir(own.directory()).expect("a folder");
            assert_eq!(own.clone().set_aside().expect("a new name"), own);
            assert!(!own.exist());
            let aside = of(expected);
            assert!(aside.exist(), "{expected}");
            assert_eq!(aside.interface().as_deref(), Some("home-2"));
            assert_eq!(aside.cookie(), Some(0x1f));
            assert_eq!(aside.set_aside().expect("a name"), own);
        }
        fs::create_dir(own.directory()).expect("a folder");
        assert_eq!(own.earlier().count(), 2);
        assert_eq!(other.earlier().count(), 0);
        fs::remove_dir_all(folder).expect("the folder's end");
    }

    #[test]
    fn a_truncated_list_of_namespaces_is_rejected() {
        let list = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let all = namespaces(&list(&[0, 4096, 0, 7, 1, 7])).expect("an end");
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [7, 4096]);
        assert_eq!(namespaces(&list(&[0, 4096, 0, 7])), None);
        assert_eq!(namespaces(&[]), None);
    }
}

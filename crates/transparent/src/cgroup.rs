//! The cgroup2 hierarchy, to whose root the programs at sockets are attached.

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, fstatfs, open, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Opens the root of the cgroup2 hierarchy, mounted or not, also from inside a cgroup namespace.
/// Such a namespace has another group as its root (`cgroup_namespaces(7)`), and programs attached
/// there would miss every application outside it.
///
/// # Errors
///
/// `ENODEV` without cgroup2. `EPERM` in a cgroup namespace without `CAP_DAC_READ_SEARCH` in the
/// initial user namespace, and without `CAP_SYS_ADMIN` if the hierarchy is not mounted.
pub(crate) fn root() -> io::Result<OwnedFd> {
    let directory = match mount_detached() {
        // Without CAP_SYS_ADMIN, as in the systemd unit.
        Err(Errno::PERM) => mounted().ok_or(Errno::PERM)?,
        mount => mount?,
    };
    match fstat(&directory)?.st_ino {
        ROOT => Ok(directory),
        _ => open_by_inode(directory.as_fd(), ROOT),
    }
}

/// Mounts the hierarchy without a mount point.
fn mount_detached() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    fsmount(context.as_fd(), flags, attributes)
}

/// Opens the hierarchy where systemd has mounted it, if it has.
fn mounted() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    MOUNT_POINTS.iter().find_map(|path| {
        let directory = open(*path, flags, Mode::empty()).ok()?;
        let found = fstatfs(&directory).ok()?;
        (found.f_type as u32 == MAGIC).then_some(directory)
    })
}

/// Mount points of cgroup2, the second beside hierarchies of cgroup v1.
const MOUNT_POINTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// `CGROUP2_SUPER_MAGIC`.
const MAGIC: u32 = 0x6367_7270;

/// Inode of the hierarchy's root: kernfs numbers its nodes from 1.
const ROOT: u64 = 1;

/// Opens a group anywhere in the hierarchy by its inode. kernfs decodes file handles by the inode
/// alone (`FILEID_KERNFS`, Linux 5.5).
fn open_by_inode(hierarchy: BorrowedFd<'_>, inode: u64) -> io::Result<OwnedFd> {
    /// `struct file_handle` with 8 bytes of handle.
    #[repr(C)]
    struct FileHandle {
        bytes: u32,
        kind: c_int,
        handle: [u8; 8],
    }
    const FILEID_KERNFS: c_int = 0xfe;
    // The mount's own descriptor is `O_PATH`, which open_by_handle_at refuses.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let hierarchy = openat(hierarchy, c".", flags, Mode::empty())?;
    let handle = FileHandle {
        bytes: size_of::<u64>() as u32,
        kind: FILEID_KERNFS,
        handle: inode.to_ne_bytes(),
    };
    // SAFETY: the descriptor is open, since `hierarchy` lives. The kernel reads `handle` as a
    // `struct file_handle` with the number of bytes that it states, writes nothing to it, and keeps
    // no pointer.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            hierarchy.as_raw_fd(),
            &raw const handle,
            libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

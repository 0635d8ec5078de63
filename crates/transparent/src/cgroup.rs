//! The cgroup2 hierarchy, to whose root the programs at sockets are attached.

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Opens the root of the cgroup2 hierarchy, mounted or not, also from inside a cgroup namespace.
/// Such a namespace has another group as its root (`cgroup_namespaces(7)`), and programs attached
/// there would miss every application outside it.
///
/// # Errors
///
/// `ENODEV` without cgroup2. `EPERM` in a cgroup namespace without `CAP_DAC_READ_SEARCH` in the
/// initial user namespace.
pub(crate) fn root() -> io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    match fstat(&mount)?.st_ino {
        ROOT => Ok(mount),
        _ => open_by_inode(mount.as_fd(), ROOT),
    }
}

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

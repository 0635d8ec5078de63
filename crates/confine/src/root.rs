//! An empty root directory, in which no path leads anywhere.

use std::io;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{chroot, fchdir};

/// Gives the process an empty, read-only root directory, which is mounted in no namespace. It must not
/// have descriptors of other directories.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` and `CAP_SYS_CHROOT`, `ENOSYS` before Linux 5.2. The root directory is
/// the same as before.
pub fn enter_empty_root() -> io::Result<()> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    fchdir(&root)?;
    Ok(chroot(".")?)
}

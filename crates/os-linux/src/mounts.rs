//! Settings of a whole mount tree that `mount(2)` cannot change at once.

use std::io;
use std::mem::size_of;

/// Makes set-user-ID bits and file capabilities ineffective on all present mounts of this mount
/// namespace, so that no program started from them gains privileges (`MOUNT_ATTR_NOSUID` with
/// `AT_RECURSIVE`). Needs `CAP_SYS_ADMIN`.
///
/// # Errors
///
/// `ENOSYS` before Linux 5.12, `EPERM`.
pub fn set_nosuid_everywhere() -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOSUID,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is a static C string. `attributes` lives until the call returns, has the
    // size that is passed, and is only read. The kernel ignores its descriptor without
    // MOUNT_ATTR_IDMAP.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

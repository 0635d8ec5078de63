//! What `mount(2)` cannot do for a whole tree at once.

use std::io;
use std::mem::size_of;

/// Has no program on any mount of this mount namespace, present ones only, gain rights by
/// being started: neither by a set-user-ID bit nor by capabilities of its file
/// (`MOUNT_ATTR_NOSUID` with `AT_RECURSIVE`). It takes `CAP_SYS_ADMIN`.
///
/// # Errors
///
/// `ENOSYS` before Linux 5.12, `EPERM`.
pub fn forbid_gaining_rights() -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOSUID,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is a C string that lives for ever. `attributes` lives until the call
    // returns, has the size that is given, and is only read; its descriptor counts for
    // nothing without MOUNT_ATTR_IDMAP.
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

//! A user that no other process of a PID namespace has.

use rustix::io::Result;
use rustix::process::{Gid, Uid};
use rustix::process::{getpid, getuid};
use rustix::thread::{
    CapabilitiesSecureBits, set_capabilities_secure_bits, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

/// The first user ID of a range that systemd leaves unassigned (`Users, Groups, UIDs and GIDs on systemd
/// Systems`). It is larger than the largest process ID.
const FIRST_UNUSED: u32 = 1_879_048_192;

/// Changes the user and the group of the process to IDs that no other process of its PID namespace has, if
/// root runs it. The process must have one thread, and keeps its
/// capabilities, so that [`restrict_thread`](crate::restrict_thread) can
/// drop them from all sets.
///
/// # Errors
/// `EPERM` without `CAP_SETUID` and `CAP_SETGID`, `EINVAL` in a user namespace without such IDs.
pub fn enter_unused_user() -> Result<()> {
    if !getuid().is_root() {
        return Ok(());
    }
    let id = FIRST_UNUSED + getpid().as_raw_nonzero().get().unsigned_abs();
    // Without `CAP_SETPCAP` the kernel drops the capabilities, except from the bounding set.
    let _ = set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP);
    let (group, user) = (Gid::from_raw(id), Uid::from_raw(id));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)
}

//! Security modules of the running kernel.

use std::io;

/// `LSM_ID_BPF` of `linux/lsm.h`.
const BPF: u64 = 110;

/// `lsm_list_modules(2)`, which has the same number on every architecture.
const LIST_MODULES: libc::c_long = 461;

/// Returns true if BPF LSM is active, using `lsm_list_modules(2)`, which needs no mounted file
/// system.
///
/// # Errors
/// `ENOSYS` before Linux 6.8.
pub fn has_bpf_lsm() -> io::Result<bool> {
    // Larger than any kernel's list; a list that does not fit fails with `E2BIG`.
    let mut ids = [0_u64; 64];
    let mut size = u32::try_from(size_of_val(&ids)).unwrap_or_default();
    // SAFETY: the kernel writes at most `size` bytes to `ids` and four to `size`; both live
    // until it returns.
    let count = unsafe { libc::syscall(LIST_MODULES, ids.as_mut_ptr(), &raw mut size, 0_u32) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    Ok(ids.iter().take(count).any(|id| *id == BPF))
}

/// `landlock_create_ruleset(2)`, which has the same number on every architecture.
const CREATE_RULESET: libc::c_long = 444;

/// `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
const VERSION: u32 = 1;

/// Returns the version of Landlock's interface, 1 or more. Changes nothing.
///
/// # Errors
/// `ENOSYS` before Linux 5.13 or without Landlock, `EOPNOTSUPP` if it was left out at boot.
pub fn landlock_version() -> io::Result<u32> {
    // SAFETY: with this flag the kernel reads and writes no memory and creates nothing; it wants a
    // null pointer and the size 0.
    let version = unsafe {
        libc::syscall(
            CREATE_RULESET,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(version).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::has_bpf_lsm;
    use std::fs;

    #[test]
    fn is_what_securityfs_says() {
        let Ok(listed) = fs::read_to_string("/sys/kernel/security/lsm") else {
            return;
        };
        if let Ok(has) = has_bpf_lsm() {
            assert_eq!(has, listed.trim().split(',').any(|name| name == "bpf"));
        }
    }
}

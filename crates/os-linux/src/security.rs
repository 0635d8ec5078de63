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

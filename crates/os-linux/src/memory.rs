//! The process's heap, and its limit of locked memory.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::sync::{Mutex, PoisonError};

/// Makes all threads share one heap, so that [`release`] can return all of its free memory. Call
/// this at the beginning of a program, before it starts threads.
///
/// By default glibc creates up to eight heaps per processor and keeps the free memory at the end of
/// each. One heap suits programs whose threads rarely allocate while they are busy. With another C
/// library, this function does nothing.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) accepts any two numbers and takes the lock of the heap that it changes.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns free memory to the system. Call this after freeing a lot of it.
///
/// glibc keeps freed memory as long as anything behind it in the same heap is in use, so that a
/// process stays as large as it ever was. The call takes some milliseconds for 100 MB, microseconds
/// for little. With another C library, it does nothing.
pub fn release() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) has no preconditions: it takes the locks of the
    // heaps and gives back whole pages that are free (all heaps since glibc 2.8).
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Calls `load`, which creates eBPF maps or programs, with the limit on locked memory
/// (`RLIMIT_MEMLOCK`) lifted, and restores the limit afterwards. Before Linux 5.11 maps and
/// programs count against the limit, whose default is too low for them (`bpf(2)`). Lifting it needs
/// `CAP_SYS_RESOURCE`; without it, `load` runs under the present limit. The limit applies to the
/// whole process, so only one thread at a time runs this.
pub fn without_memlock_limit<T>(load: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = getrlimit(Resource::Memlock);
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // Without the capability this fails; `load` reports if the present limit is too low.
    let _ = setrlimit(Resource::Memlock, unlimited);
    let loaded = load();
    let _ = setrlimit(Resource::Memlock, before);
    loaded
}

/// Returns the limit on locked memory in bytes if it keeps this process from creating eBPF maps and
/// programs, for which the kernel's error is `EPERM`: before Linux 5.11, without
/// `CAP_SYS_RESOURCE`.
#[must_use]
pub fn limit_of_ebpf() -> Option<u64> {
    let name = rustix::system::uname();
    let release = name.release().to_str().ok()?;
    let rights = capabilities(None).ok()?.effective;
    let may_lift = rights.contains(CapabilitySet::SYS_RESOURCE);
    let limit = getrlimit(Resource::Memlock);
    let is_lifted = may_lift || limit.maximum.is_none();
    limit
        .current
        .filter(|_| counts_ebpf_as_locked(release) && !is_lifted)
}

/// Returns true if a kernel of this release counts maps and programs against `RLIMIT_MEMLOCK`.
fn counts_ebpf_as_locked(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse::<u32>().ok();
    matches!((next(), next()), (Some(major), Some(minor)) if (major, minor) < (5, 11))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities};

    /// Resident memory of the process in KiB (`proc_pid_status(5)`).
    fn resident() -> usize {
        let text = fs::read_to_string("/proc/self/status").expect("procfs");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.expect("a number")
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn what_is_free_is_given_back() {
        let many: Vec<Box<[u8; 1000]>> = (0..50_000).map(|_| Box::new([1; 1000])).collect();
        let last = Box::new([1_u8; 1000]);
        let before = resident();
        drop(many);
        super::release();
        // Half of the freed memory, because other tests run at the same time.
        assert!(resident() + 25_000 < before);
        drop(last);
    }

    #[test]
    fn old_kernels_count_ebpf_as_locked_memory() {
        for release in ["5.10.0-30-amd64", "5.4.210", "4.19.0", "5.10-rc1"] {
            assert!(super::counts_ebpf_as_locked(release), "{release}");
        }
        for release in [
            "5.11.0",
            "5.15.0-91-generic",
            "6.1.0",
            "6.18.44-fc",
            "",
            "x",
        ] {
            assert!(!super::counts_ebpf_as_locked(release), "{release}");
        }
    }

    #[test]
    fn locked_memory_is_limited_again_afterwards() {
        let before = getrlimit(Resource::Memlock);
        let low = Rlimit {
            current: Some(0),
            maximum: before.maximum,
        };
        setrlimit(Resource::Memlock, low).expect("no more than before");
        let (meanwhile, loaded) =
            super::without_memlock_limit(|| (getrlimit(Resource::Memlock), 7));
        assert_eq!(getrlimit(Resource::Memlock), low);
        assert_eq!(loaded, 7);
        let rights = capabilities(None).expect("capabilities").effective;
        // Capabilities in a user namespace do not apply to this limit.
        let map = fs::read_to_string("/proc/self/uid_map").expect("procfs");
        let is_first = map.split_whitespace().eq(["0", "0", "4294967295"]);
        let may = is_first && rights.contains(CapabilitySet::SYS_RESOURCE);
        let is_lifted = may || before.maximum.is_none();
        assert_eq!(meanwhile.current, low.current.filter(|_| !is_lifted));
        setrlimit(Resource::Memlock, before).expect("no more than may be");
    }
}

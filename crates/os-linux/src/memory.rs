//! What the process holds of physical memory, and how much of it may be locked.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::{Mutex, PoisonError};

/// Lets all threads share one heap, from which [`release`] can give back all
/// that is free. For the beginning of a program, before there are threads.
///
/// By default glibc makes a heap per thread, up to eight times the number of
/// processors, and keeps the free memory at the end of each. One heap suits
/// programs whose threads hardly allocate while they are busy. Where the C
/// library is another, nothing is done.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) takes any two numbers, and the lock of the heap that
    // it changes.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives free memory back to the system, after much of it has been freed.
///
/// glibc keeps what it has been given for as long as anything behind it in the
/// same heap is used, so that a process stays as large as it ever was. It takes
/// some milliseconds for 100 MB, microseconds for little. Where the C library is another, nothing is done.
pub fn release() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) has no preconditions: it takes the locks of the
    // heaps and gives back whole pages that are free (all heaps since glibc 2.8).
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Calls `load`, which makes maps or programs of eBPF, without the limit on the memory that
/// this process may lock (`RLIMIT_MEMLOCK`), and puts it back. Before Linux 5.11 they count
/// against it, and it is lower than what they need (`bpf(2)`). To lift it takes
/// `CAP_SYS_RESOURCE`; without, `load` is called under the limit that there is. One thread of
/// the process at a time, as the limit is the process's.
pub fn with_locked_memory<T>(load: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = getrlimit(Resource::Memlock);
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // Refused without the right to: whether the limit that there is will do, `load` finds out.
    let _ = setrlimit(Resource::Memlock, unlimited);
    let loaded = load();
    let _ = setrlimit(Resource::Memlock, before);
    loaded
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities};

    /// KiB of the process that are in physical memory (`proc_pid_status(5)`).
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
        // Half of it: other tests run meanwhile.
        assert!(resident() + 25_000 < before);
        drop(last);
    }

    #[test]
    fn locked_memory_is_limited_again_afterwards() {
        let before = getrlimit(Resource::Memlock);
        let low = Rlimit {
            current: Some(0),
            maximum: before.maximum,
        };
        setrlimit(Resource::Memlock, low).expect("no more than before");
        let (meanwhile, loaded) = super::with_locked_memory(|| (getrlimit(Resource::Memlock), 7));
        assert_eq!(getrlimit(Resource::Memlock), low);
        assert_eq!(loaded, 7);
        let rights = capabilities(None).expect("capabilities").effective;
        // Rights of a user namespace are none over this.
        let map = fs::read_to_string("/proc/self/uid_map").expect("procfs");
        let is_first = map.split_whitespace().eq(["0", "0", "4294967295"]);
        let may = is_first && rights.contains(CapabilitySet::SYS_RESOURCE);
        let is_lifted = may || before.maximum.is_none();
        assert_eq!(meanwhile.current, low.current.filter(|_| !is_lifted));
        setrlimit(Resource::Memlock, before).expect("no more than may be");
    }
}

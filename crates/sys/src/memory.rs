//! What the process holds of physical memory.

/// Lets all threads share one heap, from which [`release`] can give back all
/// that is free. For the beginning of a program, before there are threads.
///
/// By default glibc makes a heap per thread, up to eight times the number of
/// processors, and keeps the free memory at the end of each. One heap suits
/// programs whose threads hardly allocate while they are busy. Where the C
/// library is another, nothing is done.
pub fn share_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
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
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) has no preconditions: it takes the locks of the
    // heaps and gives back whole pages that are free (all heaps since glibc 2.8).
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;

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
}

//! How the scheduler treats the calling thread.

use std::io;

/// What a thread asks for (`sched(7)`). Neither takes a right, and neither
/// changes the share of a processor that the thread gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_OTHER`: a thread that wakes up may interrupt another.
    Normal,
    /// `SCHED_BATCH`: it runs when the other has used its slice up, or sleeps.
    Batch,
}

/// Changes the class of the calling thread.
///
/// # Errors
///
/// The system's: `EPERM` or `ENOSYS` where a sandbox forbids the call.
pub fn set_class(class: Class) -> io::Result<()> {
    let policy = match class {
        Class::Normal => libc::SCHED_OTHER,
        Class::Batch => libc::SCHED_BATCH,
    };
    // musl's `sched_setscheduler` refuses to work, as POSIX means processes and
    // Linux threads: so the system call.
    let parameters: libc::c_int = 0;
    // SAFETY: `struct sched_param` of the kernel is one `int`, the priority,
    // which both classes want to be 0; it lives until the call returns and is
    // only read. Thread 0 is the calling one.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            policy,
            &raw const parameters,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, set_class};
    use std::thread;

    /// The policy of the calling thread, field 41 of its `stat` (`proc(5)`).
    fn policy() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("stat");
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let policy = fields.split(' ').nth(41 - 3).expect("field 41");
        policy.parse().expect("a number")
    }

    #[test]
    fn only_the_calling_thread_changes() {
        let before = policy();
        thread::spawn(|| {
            set_class(Class::Batch).expect("SCHED_BATCH");
            assert_eq!(policy(), libc::SCHED_BATCH);
            set_class(Class::Normal).expect("SCHED_OTHER");
            assert_eq!(policy(), libc::SCHED_OTHER);
            set_class(Class::Batch).expect("SCHED_BATCH again");
        })
        .join()
        .expect("no panic");
        assert_eq!(policy(), before);
    }
}

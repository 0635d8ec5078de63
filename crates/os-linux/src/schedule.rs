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

impl Class {
    fn policy(self) -> libc::c_int {
        match self {
            Self::Normal => libc::SCHED_OTHER,
            Self::Batch => libc::SCHED_BATCH,
        }
    }
}

/// Changes the class of the calling thread, if it has the one expected. Whether
/// it had: a thread that somebody has given another policy, for real time or
/// for idle time, keeps it.
///
/// # Errors
///
/// The system's: `EPERM` or `ENOSYS` where a sandbox forbids the calls.
pub fn change_class(from: Class, to: Class) -> io::Result<bool> {
    // musl's functions for this refuse to work, as POSIX means processes and
    // Linux threads: so the system calls.
    // SAFETY: the call takes a number and no memory. Thread 0 is the calling one.
    let present = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    if present != libc::c_long::from(from.policy()) {
        return match present {
            ..0 => Err(io::Error::last_os_error()),
            _ => Ok(false),
        };
    }
    let parameters: libc::c_int = 0;
    // SAFETY: `struct sched_param` of the kernel is one `int`, the priority,
    // which both classes want to be 0; it lives until the call returns and is
    // only read. Thread 0 is the calling one.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            to.policy(),
            &raw const parameters,
        )
    };
    if result == 0 {
        Ok(true)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, change_class};
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
            let begin = || change_class(Class::Normal, Class::Batch).expect("SCHED_BATCH");
            let end = || change_class(Class::Batch, Class::Normal).expect("SCHED_OTHER");
            assert!(begin());
            assert_eq!(policy(), libc::SCHED_BATCH);
            assert!(!begin());
            assert!(end());
            assert_eq!(policy(), libc::SCHED_OTHER);
            assert!(!end());
            assert!(begin(), "again");
        })
        .join()
        .expect("no panic");
        assert_eq!(policy(), before);
    }

    #[test]
    fn what_somebody_has_chosen_stays() {
        thread::spawn(|| {
            let parameters: libc::c_int = 0;
            // SAFETY: as in `change_class`.
            let result = unsafe {
                let policy = libc::SCHED_IDLE;
                libc::syscall(
                    libc::SYS_sched_setscheduler,
                    0,
                    policy,
                    &raw const parameters,
                )
            };
            assert_eq!(result, 0, "SCHED_IDLE takes no right");
            assert!(!change_class(Class::Normal, Class::Batch).expect("no error"));
            assert!(!change_class(Class::Batch, Class::Normal).expect("no error"));
            assert_eq!(policy(), libc::SCHED_IDLE);
        })
        .join()
        .expect("no panic");
    }
}

//! Scheduling policy of the calling thread.

use std::io;

/// A scheduling policy (`sched(7)`). Neither needs a privilege, and neither changes the share of
/// processor time that the thread gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`: when the thread wakes, it may preempt another thread.
    Normal,
    /// `SCHED_BATCH`: when the thread wakes, it waits until the running thread's slice ends or that
    /// thread sleeps.
    Batch,
}

impl Policy {
    fn number(self) -> libc::c_int {
        match self {
            Self::Normal => libc::SCHED_OTHER,
            Self::Batch => libc::SCHED_BATCH,
        }
    }
}

/// Changes the policy of the calling thread from `from` to `to` and returns true. If the thread has
/// a policy other than `from`, for example one set by an administrator, leaves it and returns
/// false.
///
/// # Errors
///
/// The system's: `EPERM` or `ENOSYS` if a sandbox forbids the calls.
pub fn change_policy(from: Policy, to: Policy) -> io::Result<bool> {
    // musl's functions for this always fail, because POSIX defines them for processes and Linux
    // applies them to threads. So this uses the system calls.
    // SAFETY: the call takes a number and no memory. Thread 0 is the calling one.
    let present = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    if present != libc::c_long::from(from.number()) {
        return match present {
            ..0 => Err(io::Error::last_os_error()),
            _ => Ok(false),
        };
    }
    let parameters: libc::c_int = 0;
    // SAFETY: the kernel's `struct sched_param` is one `int`, the priority, which must be 0 for
    // both policies. It lives until the call returns and is only read. Thread 0 is the calling one.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            to.number(),
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
    use super::{Policy, change_policy};
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
            let begin = || change_policy(Policy::Normal, Policy::Batch).expect("SCHED_BATCH");
            let end = || change_policy(Policy::Batch, Policy::Normal).expect("SCHED_OTHER");
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
            // SAFETY: as in `change_policy`.
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
            assert!(!change_policy(Policy::Normal, Policy::Batch).expect("no error"));
            assert!(!change_policy(Policy::Batch, Policy::Normal).expect("no error"));
            assert_eq!(policy(), libc::SCHED_IDLE);
        })
        .join()
        .expect("no panic");
    }
}

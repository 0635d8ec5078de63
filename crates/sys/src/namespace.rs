//! Work in another network namespace.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::resume_unwind;
use std::thread;

/// Runs `work` in another network namespace and returns what it returns.
/// Sockets that it opens stay there.
///
/// `namespace` is `/proc/PID/ns/net`, a file that `ip netns` made, or what
/// `SIOCGSKNS` and `TUNGETDEVNETNS` return. A namespace is a property of the
/// thread, not of the process (`setns(2)`), so that `work` has a thread of its
/// own, which ends with it; the caller's namespace never changes.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_ADMIN` here and in the namespace's own user
/// namespace, `EINVAL` when `namespace` is not a network namespace, `EAGAIN`
/// when there can be no further thread. `work` has not run then.
///
/// # Panics
///
/// When `work` does.
pub fn within<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let visitor = thread::Builder::new().spawn_scoped(scope, || {
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })?;
        visitor.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests;

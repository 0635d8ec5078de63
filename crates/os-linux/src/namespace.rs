//! The calling thread's namespaces.

use std::fs;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::panic;
use std::thread;

use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Returns a number that no other network namespace has or had since the system started
/// (`SO_NETNS_COOKIE`, Linux 5.14). The inode in `/proc/self/ns`, in contrast, is reused after a
/// namespace is destroyed.
///
/// # Errors
///
/// `ENOPROTOOPT` on an older kernel.
pub fn network_cookie() -> io::Result<u64> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the descriptor is open because `any` lives until the end of the function. The kernel
    // writes at most `length` bytes to `cookie`, which is 8 bytes long, valid for any 8 bytes and
    // not borrowed elsewhere, and it writes the number of bytes to `length`. It keeps neither
    // address.
    let status = unsafe {
        libc::getsockopt(
            any.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    match status {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the inode number of the network namespace. The kernel reuses the number after the
/// namespace is destroyed.
///
/// # Errors
///
/// If `/proc` is not available.
pub fn network_inode() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// Returns a number that differs for all existing network namespaces: the cookie, or on an older
/// kernel the inode number, which is greater than any cookie becomes.
///
/// # Errors
///
/// As [`network_inode`].
pub fn network_id() -> io::Result<u64> {
    match network_cookie() {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => network_inode(),
        cookie => cookie,
    }
}

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Users, groups, and capabilities over the other kinds.
    User,
    /// Interfaces, routes, sockets.
    Network,
    /// Mount points.
    Mount,
}

impl NamespaceKind {
    /// The name below `/proc/self/ns`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Network => "net",
            Self::Mount => "mnt",
        }
    }
}

/// Moves the calling thread into a new namespace of this kind. Only a single-threaded process can
/// enter a new user namespace.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_ADMIN` (a new user namespace does not need it unless a security policy
/// forbids unprivileged ones); `ENOSPC` when the limit on namespaces is reached
/// (`/proc/sys/user/max_*_namespaces`); `EINVAL` when the kernel does not support this kind.
pub fn unshare(kind: NamespaceKind) -> io::Result<()> {
    let flag = match kind {
        NamespaceKind::User => UnshareFlags::NEWUSER,
        NamespaceKind::Network => UnshareFlags::NEWNET,
        NamespaceKind::Mount => UnshareFlags::NEWNS,
    };
    // SAFETY: of the things that `unshare` can do, only CLONE_FILES could make the descriptors of
    // this thread differ from those of another one, and none of these flags is CLONE_FILES.
    unsafe { unshare_unsafe(flag) }.map_err(Into::into)
}

/// A network namespace without a name. The kernel destroys it when the last handle is closed, the
/// last thread has left it and the last socket that was opened in it is closed. A TUN device that
/// was opened in it does not keep it.
#[derive(Debug)]
pub struct NetworkNamespace(OwnedFd);

/// Takes over the descriptor of a network namespace from another process.
impl From<OwnedFd> for NetworkNamespace {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<NetworkNamespace> for OwnedFd {
    fn from(namespace: NetworkNamespace) -> Self {
        namespace.0
    }
}

impl NetworkNamespace {
    /// Creates a network namespace. Its only interface is loopback, which is down.
    ///
    /// # Errors
    ///
    /// Those of [`unshare`]; also if `/proc` is not available.
    pub fn new() -> io::Result<Self> {
        in_thread(|| {
            unshare(NamespaceKind::Network)?;
            let file = fs::File::open("/proc/thread-self/ns/net")?;
            Ok(Self(file.into()))
        })?
    }

    /// Returns a second handle of the same namespace.
    ///
    /// # Errors
    ///
    /// If no further descriptor can be opened.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Runs `work` in this namespace, in a new thread, so that no existing thread has to switch
    /// back. Sockets and devices that `work` opens stay in the namespace.
    ///
    /// # Errors
    ///
    /// `EPERM` without `CAP_SYS_ADMIN`; an error if no thread can be started.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })?
    }
}

/// Runs `work` in a new thread and waits for it.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into());
        let done = thread.spawn_scoped(scope, work)?.join();
        Ok(done.unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
    })
}

#[cfg(test)]
mod tests {
    use super::{NetworkNamespace, network_cookie};
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    #[test]
    fn each_namespace_has_one_that_stays() {
        let own = network_cookie().expect("Linux 5.14");
        assert_eq!(network_cookie().expect("again"), own);
        let other = std::thread::spawn(|| {
            // SAFETY: only this thread's network namespace changes, and it ends
            // with the test.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("root");
            network_cookie().expect("there")
        });
        assert_ne!(other.join().expect("thread"), own);
    }
    #[test]
    fn what_is_done_within_another_one_leaves_this_thread_here() {
        let here = network_cookie().expect("Linux 5.14");
        let network = NetworkNamespace::new().expect("root");
        let within = || network.within(|| network_cookie().expect("there"));
        let there = within().expect("entered");
        assert_ne!(there, here);
        assert_eq!(within().expect("again"), there);
        assert_eq!(network_cookie().expect("back"), here);
    }
}

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

/// A number that no other network namespace has or had since the system
/// started (`SO_NETNS_COOKIE`, Linux 5.14). The inode below `/proc/self/ns` is
/// given anew to the next namespace.
///
/// # Errors
///
/// `ENOPROTOOPT` on an older kernel.
pub fn network_cookie() -> io::Result<u64> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the descriptor is open, as `any` lives. The kernel writes at most
    // `length` bytes to `cookie`, which has that many, may be any 8 bytes, and is
    // borrowed by nobody else; and the number of bytes to `length`. It keeps
    // neither address.
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

/// The inode of the network namespace, which the kernel calls it by; another one may get
/// it when it is gone.
///
/// # Errors
///
/// Without `/proc`.
pub fn network_inode() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// What tells the network namespace from all that exist: its cookie, or on an older kernel
/// its inode, which is greater than any cookie gets.
///
/// # Errors
///
/// As [`network_inode`].
pub fn network_number() -> io::Result<u64> {
    match network_cookie() {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => network_inode(),
        cookie => cookie,
    }
}

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Users, groups, and capabilities over the other kinds.
    User,
    /// Interfaces, routes, sockets.
    Network,
    /// What is mounted.
    Mount,
}

impl Kind {
    /// Its name below `/proc/self/ns`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Network => "net",
            Self::Mount => "mnt",
        }
    }
}

/// Moves the calling thread into a new namespace of this kind. Only a process with one
/// thread can have a new user namespace.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_ADMIN`, which a new user namespace does not take, unless
/// something forbids it; `ENOSPC` when there may be no more of them
/// (`/proc/sys/user/max_*_namespaces`); `EINVAL` where the kernel has none of this kind.
pub fn enter_new(kind: Kind) -> io::Result<()> {
    let flag = match kind {
        Kind::User => UnshareFlags::NEWUSER,
        Kind::Network => UnshareFlags::NEWNET,
        Kind::Mount => UnshareFlags::NEWNS,
    };
    // SAFETY: of what `unshare` does, only CLONE_FILES could make descriptors of this thread
    // and another one differ, and it is none of these flags.
    unsafe { unshare_unsafe(flag) }.map_err(Into::into)
}

/// A network namespace without a name. It is gone when nobody has this, is in it, or has a
/// socket that was opened in it: a TUN that was opened there does not hold it.
#[derive(Debug)]
pub struct Network(OwnedFd);

impl Network {
    /// A new one, in which there is loopback, which is down, and nothing else.
    ///
    /// # Errors
    ///
    /// As [`enter_new`], and without `/proc`.
    pub fn new() -> io::Result<Self> {
        in_thread(|| {
            enter_new(Kind::Network)?;
            let file = fs::File::open("/proc/thread-self/ns/net")?;
            Ok(Self(file.into()))
        })?
    }

    /// Returns a second handle of the same namespace.
    ///
    /// # Errors
    ///
    /// When there can be no further descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Does something in it. What is opened then belongs to it, and stays there. This goes
    /// on in a thread of its own, so that no thread of anybody else's has to come back.
    ///
    /// # Errors
    ///
    /// `EPERM` without `CAP_SYS_ADMIN`; when there can be no further thread.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })?
    }
}

/// Does something in a thread that ends with it.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into());
        let done = thread.spawn_scoped(scope, work)?.join();
        Ok(done.unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
    })
}

#[cfg(test)]
mod tests {
    use super::{Network, network_cookie};
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
        let network = Network::new().expect("root");
        let within = || network.within(|| network_cookie().expect("there"));
        let there = within().expect("entered");
        assert_ne!(there, here);
        assert_eq!(within().expect("again"), there);
        assert_eq!(network_cookie().expect("back"), here);
    }
}

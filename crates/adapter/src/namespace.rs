//! Identity of network namespaces.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use taupe_os_linux::namespace::network_cookie;

/// The network namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// Identifies a network namespace, also among those that have ended. For example, a restarted
/// container has a new one, while `/run` still has the journals of the previous one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Namespace {
    /// The boot id, which differs for each start of the system (`random(4)`).
    boot: String,
    /// The cookie, which is unique since the start of the system; 0 if the kernel has none.
    cookie: u64,
    /// The inode number, which the kernel reuses.
    inode: u64,
}

impl Namespace {
    /// Returns the calling thread's namespace. Without `/proc` all namespaces of a system look
    /// equal.
    #[must_use]
    pub fn current() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            cookie: network_cookie().unwrap_or_default(),
            inode: inode(Path::new(OWN)).unwrap_or_default(),
        }
    }

    /// Returns a namespace with a given cookie.
    #[cfg(test)]
    pub(crate) fn numbered(cookie: u64) -> Self {
        Self {
            cookie,
            ..Self::current()
        }
    }

    /// Returns true if the namespace is known to have ended, with everything in it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let current = Self::current();
        if self.boot != current.boot {
            return true;
        }
        if self.inode == current.inode {
            return self.cookie != current.cookie;
        }
        !self.has_process() && !self.is_mounted()
    }

    /// Returns true if a visible process is in the namespace, or if the processes cannot be listed.
    fn has_process(&self) -> bool {
        let Ok(processes) = fs::read_dir("/proc") else {
            return true;
        };
        processes
            .flatten()
            .map(|process| process.path().join("ns/net"))
            .any(|link| inode(&link) == Some(self.inode))
    }

    /// Returns true if the namespace has a name, as created by `ip netns`.
    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo");
        mounts.map_or(true, |mounts| mounts.contains(&format!(" {self} ")))
    }
}

/// Formats the namespace as the kernel does: `net:[4026531840]`.
impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net:[{}]", self.inode)
    }
}

fn inode(link: &Path) -> Option<u64> {
    fs::metadata(link).ok().map(|data| data.ino())
}

#[cfg(test)]
mod tests {
    use super::Namespace;

    #[test]
    fn the_own_one_is_there_and_what_was_before_it_is_gone() {
        let own = Namespace::current();
        assert_eq!(own, Namespace::current());
        assert!(!own.is_gone());
        let before_a_restart = Namespace {
            boot: "another".to_owned(),
            ..own.clone()
        };
        assert!(before_a_restart.is_gone());
        let with_the_same_inode = Namespace {
            cookie: own.cookie + 1,
            ..own.clone()
        };
        assert!(with_the_same_inode.is_gone());
        let of_nobody = Namespace { inode: 1, ..own };
        assert!(of_nobody.is_gone());
    }
}

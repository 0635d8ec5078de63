//! Running processes, with the properties that rules about applications use.

use crate::executables::{escaped, in_path};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use taupe_config::application::Process;

/// Suffix of the path in `/proc/PID/exe` if the file was removed.
const DELETED: &[u8] = b" (deleted)";

/// Maximum number of ancestors that are examined.
const MAX_ANCESTORS: usize = 64;

/// Tables of sockets in `/proc/self/net`.
const SOCKET_TABLES: [&str; 8] = [
    "tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6",
];

/// A process, or an executable treated as a process of this namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subject {
    /// Process id, if it runs.
    pub id: Option<u32>,
    pub(crate) path: Vec<u8>,
    cgroup: Vec<u8>,
    /// Real user.
    pub uid: u32,
    /// Parent process, by which it was started or later adopted.
    parent: Option<u32>,
    /// True if it runs in another network namespace, to which rules do not apply.
    pub(crate) is_in_other_namespace: bool,
}

/// Reason why a word does not name a process or an executable.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SubjectError {
    #[error("there is no process {0}, or it is a kernel thread")]
    Process(u32),
    #[error(
        "there is no executable {0:?}; give its path, its name if it is in PATH, or a process ID"
    )]
    Executable(PathBuf),
}

impl Subject {
    /// Finds the process or executable that a word of the command line means. A number is a process
    /// id, unless an executable has that name.
    ///
    /// # Errors
    /// Fails if there is no such process or executable.
    pub fn find(word: &OsStr) -> Result<Self, SubjectError> {
        let found = match word.to_str() {
            Some(name) if !name.contains('/') => in_path(name),
            _ => Some(PathBuf::from(word)),
        };
        let number = word.to_str().and_then(|word| word.parse().ok());
        if let (None, Some(id)) = (&found, number) {
            return Self::of(id).ok_or(SubjectError::Process(id));
        }
        let real = found.and_then(|path| path.canonicalize().ok());
        let real = real.filter(|path| path.is_file());
        let path = real.ok_or_else(|| SubjectError::Executable(word.into()))?;
        Ok(Self {
            id: None,
            path: path.into_os_string().into_vec(),
            cgroup: cgroup("self"),
            uid: rustix::process::getuid().as_raw(),
            parent: Some(std::os::unix::process::parent_id()),
            is_in_other_namespace: false,
        })
    }

    /// Reads a running process. `None` if it has ended or has no executable.
    #[must_use]
    pub fn of(id: u32) -> Option<Self> {
        let folder = Path::new("/proc").join(id.to_string());
        let path = fs::read_link(folder.join("exe")).ok()?;
        let mut path = path.into_os_string().into_vec();
        if path.ends_with(DELETED) {
            path.truncate(path.len() - DELETED.len());
        }
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let (uids, parent) = (field("Uid:")?, field("PPid:")?);
        Some(Self {
            id: Some(id),
            path,
            cgroup: cgroup(&id.to_string()),
            uid: uids.split_whitespace().next()?.parse().ok()?,
            parent: parent.trim().parse().ok(),
            // Without the permission to look, the process counts as one of this namespace.
            is_in_other_namespace: network_namespace(&id.to_string())
                .is_some_and(|there| network_namespace("self").is_some_and(|here| there != here)),
        })
    }

    /// Returns all processes of this network namespace, by ascending id.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let here = network_namespace("self");
        let mut ids = ids();
        ids.retain(|id| network_namespace(&id.to_string()) == here);
        ids.into_iter().filter_map(Self::of).collect()
    }

    /// Returns the ancestors, the nearest first, up to one that has ended or runs in another
    /// network namespace. Rules are not inherited from process 1.
    pub(crate) fn ancestors(&self) -> Vec<Self> {
        let above = |child: &Self| {
            let parent = child.parent.filter(|parent| *parent > 1)?;
            Self::of(parent).filter(|parent| !parent.is_in_other_namespace)
        };
        std::iter::successors(above(self), above)
            .take(MAX_ANCESTORS)
            .collect()
    }

    /// Treats the process as one of this network namespace.
    pub(crate) fn into_local(mut self) -> Self {
        self.is_in_other_namespace = false;
        self
    }

    /// Returns the path of the executable.
    #[must_use]
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Returns the path of the control group in cgroup2.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.cgroup))
    }

    /// Returns the properties by which rules decide.
    #[must_use]
    pub fn process(&self) -> Process<'_> {
        let name = self.path.rsplit(|byte| *byte == b'/').next();
        Process {
            path: &self.path,
            name: name.unwrap_or_default(),
            cgroup: &self.cgroup,
            uid: self.uid,
        }
    }

    /// Returns the path of the executable, escaped for display.
    #[must_use]
    pub fn shown_path(&self) -> String {
        escaped(&self.path)
    }

    /// Returns the control group, escaped for display.
    #[must_use]
    pub fn shown_cgroup(&self) -> String {
        escaped(&self.cgroup)
    }

    /// Counts the given sockets that the process has open.
    #[must_use]
    pub fn count(&self, sockets: &HashSet<u64>) -> usize {
        let own = self.id.into_iter().flat_map(sockets_of);
        own.filter(|inode| sockets.contains(inode)).count()
    }
}

/// Returns the ids of all processes, ascending.
pub(crate) fn ids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    ids
}

/// Returns the inodes of the sockets that a process has open.
pub(crate) fn sockets_of(id: u32) -> impl Iterator<Item = u64> {
    let links = fs::read_dir(format!("/proc/{id}/fd"));
    let links = links.into_iter().flatten().flatten();
    links.filter_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    })
}

/// Returns the inodes of all sockets in this network namespace.
#[must_use]
pub fn sockets() -> HashSet<u64> {
    let tables = SOCKET_TABLES.map(|table| fs::read_to_string(format!("/proc/self/net/{table}")));
    let texts = tables.iter().flatten();
    let lines = texts.flat_map(|table| table.lines().skip(1));
    lines
        .filter_map(|line| line.split_whitespace().nth(9)?.parse().ok())
        .collect()
}

/// Identifies the network namespace of a process.
fn network_namespace(id: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{id}/ns/net")).ok()
}

/// Returns the path of a process's control group in cgroup2 (`cgroups(7)`).
fn cgroup(id: &str) -> Vec<u8> {
    let text = fs::read(format!("/proc/{id}/cgroup")).unwrap_or_default();
    let mut lines = text.split(|byte| *byte == b'\n');
    let path = lines.find_map(|line| line.strip_prefix(b"0::"));
    path.unwrap_or(b"/").to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn this_process_is_found() {
        let id = std::process::id();
        let this = Subject::of(id).expect("runs");
        let executable = std::env::current_exe().expect("has one");
        assert_eq!(this.path, executable.as_os_str().as_bytes());
        assert_eq!(this.uid, rustix::process::getuid().as_raw());
        assert!(Subject::all().contains(&this));
        let name = executable.file_name().expect("a file").as_bytes();
        assert_eq!(this.process().name, name);
        let before = this.count(&sockets());
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert!(this.count(&sockets()) > before);
        drop(socket);
        let found = Subject::find(executable.as_os_str()).expect("an executable");
        assert_eq!((found.id, found.path), (None, this.path));
        let found = Subject::find(id.to_string().as_ref()).expect("a process");
        assert_eq!(found.id, Some(id));
    }

    #[test]
    fn control_sequences_in_names_are_escaped() {
        let shown = escaped(b"/opt/\x1b]0;x\x07\xff name");
        assert_eq!(shown, "/opt/\\u{1b}]0;x\\u{7}\u{fffd} name");
    }

    #[test]
    fn a_missing_executable_or_process_is_refused() {
        for word in ["no-such-program-anywhere", "/no/such", "/", "4294967295"] {
            Subject::find(word.as_ref()).expect_err(word);
        }
    }
}

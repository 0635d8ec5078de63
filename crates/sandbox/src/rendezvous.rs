//! Rendezvous: other commands of the same user find a running sandbox.
//!
//! A folder that only the user can enter has two files per sandbox: a lock file, locked by the
//! process that created the sandbox, and a socket at which this process passes the sandbox's
//! namespaces.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::{PidfdFlags, Uid, geteuid, pidfd_open};

use crate::process::Namespaces;
use taupe_os_linux::message_socket as message;

/// Pending connections. Further ones are refused.
const BACKLOG: i32 = 16;

/// Reason why a sandbox cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// Another process has a sandbox of this name.
    #[error("{0} is running already")]
    Running(String),
    /// Another user may control the folder.
    #[error(
        "{} must be a folder of user {user} that nobody else can enter (mode 0700)", .folder.display()
    )]
    Unsafe {
        /// The folder.
        folder: PathBuf,
        /// The current user.
        user: u32,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// The failed action.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Reason why a sandbox cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// There is no sandbox of this name.
    #[error("there is no tunnel {name} to join{}", list(.running))]
    NoSandbox {
        /// The requested name.
        name: String,
        /// The names of running sandboxes.
        running: Vec<String>,
    },
    /// The sandbox has just ended.
    #[error("{0} has just ended")]
    Ended(String),
    /// See [`RendezvousError`].
    #[error(transparent)]
    Place(#[from] RendezvousError),
}

/// A reserved name of a sandbox. Until it is dropped, no other process of this user can reserve it.
#[derive(Debug)]
pub struct Rendezvous {
    folder: PathBuf,
    socket: PathBuf,
    listener: OwnedFd,
    user: Uid,
    /// Dropping the descriptor releases the lock.
    _lock: File,
}

/// The socket at which processes ask to join.
#[derive(Debug)]
pub struct JoinListener {
    socket: OwnedFd,
    /// The user, whose processes may join.
    user: Uid,
}

/// A process that asks to join.
#[derive(Debug)]
pub struct JoinRequest {
    connection: OwnedFd,
    /// A pidfd, readable once the process has ended (`pidfd_open(2)`).
    pub process: OwnedFd,
}

impl Rendezvous {
    /// Reserves a name and begins to listen for processes that join.
    ///
    /// # Errors
    ///
    /// See [`RendezvousError`].
    pub fn reserve(name: &str) -> Result<Self, RendezvousError> {
        let folder = user_folder()?;
        let path = folder.join(format!("{name}.lock"));
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(RendezvousError::Running(name.to_owned())),
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
        }
        let socket = folder.join(format!("{name}.sock"));
        // This process has the lock, so an existing socket is left over.
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &socket)(error));
            }
            _ => {}
        }
        let made = || {
            let listener = new_socket()?;
            bind(&listener, &SocketAddrUnix::new(&*socket)?)?;
            listen(&listener, BACKLOG)?;
            Ok::<_, rustix::io::Errno>(listener)
        };
        let listener = made().map_err(|error| io_error("listen at", &socket)(error.into()))?;
        Ok(Self {
            folder,
            socket,
            listener,
            user: geteuid(),
            _lock: lock,
        })
    }

    /// Returns the folder of all sandboxes of this user.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns a copy of the socket.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has no free descriptors.
    pub fn listener(&self) -> io::Result<JoinListener> {
        Ok(JoinListener {
            socket: self.listener.try_clone()?,
            user: self.user,
        })
    }
}

impl JoinListener {
    /// Waits for the next process that asks to join. Refuses processes of other users.
    ///
    /// # Errors
    ///
    /// Returns the system's error. A later call may succeed.
    pub fn accept(&self) -> io::Result<JoinRequest> {
        let connection = accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        let peer = socket_peercred(&connection)?;
        if peer.uid != self.user {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // The peer waits for an answer, so its process ID has not been reused.
        let process = pidfd_open(peer.pid, PidfdFlags::empty())?;
        Ok(JoinRequest {
            connection,
            process,
        })
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

impl JoinRequest {
    /// Passes the namespaces to the process. Returns false if it has ended.
    pub fn grant(&self, namespaces: &Namespaces) -> bool {
        let Namespaces {
            user,
            network,
            mount,
        } = namespaces;
        let all = [user.as_fd(), network.as_fd(), mount.as_fd()];
        message::send(self.connection.as_fd(), b"+", &all).is_ok()
    }
}

impl Namespaces {
    /// Requests the namespaces of a sandbox. Its tunnel stays up until this process ends.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn request(name: &str) -> Result<Self, JoinError> {
        let folder = user_folder()?;
        let none = || JoinError::NoSandbox {
            name: name.to_owned(),
            running: running(&folder),
        };
        if name.contains('/') {
            return Err(none());
        }
        let path = folder.join(format!("{name}.sock"));
        let connected = || {
            let socket = new_socket()?;
            connect(&socket, &SocketAddrUnix::new(&*path)?)?;
            Ok::<_, rustix::io::Errno>(socket)
        };
        let socket = connected().map_err(|_| none())?;
        let answer = message::receive(socket.as_fd());
        let descriptors = answer.ok().flatten().map(|answer| answer.descriptors);
        let descriptors = descriptors.unwrap_or_default().try_into();
        let [user, network, mount] = descriptors.map_err(|_| JoinError::Ended(name.to_owned()))?;
        Ok(Self {
            user,
            network,
            mount,
        })
    }
}

/// Returns the names of the running sandboxes.
fn running(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".sock")?.to_owned())
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

/// Lists the running sandboxes for a message.
fn list(running: &[String]) -> String {
    match running.is_empty() {
        true => String::new(),
        false => format!("; running: {}", running.join(", ")),
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RendezvousError {
    let path = path.to_owned();
    move |source| RendezvousError::Io { what, path, source }
}

/// Returns the folder of this user's sandboxes, and creates it if necessary: below
/// `XDG_RUNTIME_DIR` if that belongs to the user, else for root below `/run`, where no other user
/// can create it first.
///
/// # Errors
///
/// See [`RendezvousError`].
pub fn user_folder() -> Result<PathBuf, RendezvousError> {
    let user = geteuid().as_raw();
    let session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let is_ours = |path: &PathBuf| {
        let found = fs::metadata(path).map(|found| found.is_dir() && found.uid() == user);
        path.is_absolute() && found.unwrap_or(false)
    };
    let folder = match session.filter(is_ours) {
        Some(session) => session.join("taupe"),
        None if user == 0 => PathBuf::from("/run/taupe-exec"),
        None => PathBuf::from(format!("/tmp/taupe-{user}")),
    };
    ensure_private(&folder, user)?;
    Ok(folder)
}

fn ensure_private(folder: &Path, user: u32) -> Result<(), RendezvousError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io_error("make", folder)(error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(folder).map_err(io_error("look at", folder))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(RendezvousError::Unsafe {
            folder: folder.to_owned(),
            user,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{RendezvousError, ensure_private};
    use rustix::process::geteuid;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn only_a_folder_of_our_own_that_is_closed_to_others_will_do() {
        let scratch = std::env::temp_dir().join(format!("taupe-sandbox-{}", std::process::id()));
        fs::create_dir(&scratch).expect("scratch");
        let user = geteuid().as_raw();
        let folder = scratch.join("taupe");
        ensure_private(&folder, user).expect("made");
        ensure_private(&folder, user).expect("found");
        let refused = |what: &str| {
            let error = ensure_private(&folder, user).expect_err(what);
            assert!(
                matches!(error, RendezvousError::Unsafe { .. }),
                "{what}: {error}"
            );
        };
        assert!(ensure_private(&folder, user + 1).is_err(), "another user's");
        fs::set_permissions(&folder, Permissions::from_mode(0o750)).expect("chmod");
        refused("open to the group");
        fs::rename(&folder, scratch.join("other")).expect("rename");
        fs::set_permissions(scratch.join("other"), Permissions::from_mode(0o700)).expect("chmod");
        symlink(scratch.join("other"), &folder).expect("link");
        refused("a link");
        fs::remove_dir_all(&scratch).expect("removed");
    }
}

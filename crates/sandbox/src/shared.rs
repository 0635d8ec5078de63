//! How other commands of the same user find a cell.
//!
//! In a folder that nobody else can enter there is for each cell a file that the process
//! that made it has locked, and a socket at which it hands out the cell's namespaces.

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
use rustix::process::{PidfdFlags, geteuid, pidfd_open};

use crate::{Namespaces, message};

/// Who waits to be let in; more are refused.
const WAITING: i32 = 16;

/// Why there is no place for a cell to be found.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Another process has a cell of this name.
    #[error("{0} is running already: `taupe exec --join {0} -- COMMAND` uses the same tunnel")]
    Running(String),
    /// The folder could be another user's trap.
    #[error(
        "{} must be a folder of user {user} that nobody else can enter (mode 0700); remove it", .folder.display()
    )]
    Unsafe {
        /// The folder.
        folder: PathBuf,
        /// Who runs this.
        user: u32,
    },
    /// The system's error.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// What was to be done.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Why a cell cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody has one of this name.
    #[error("there is no tunnel {0} of `taupe exec` to join{1}")]
    None(String, String),
    /// It ended just now.
    #[error("{0} has just ended")]
    Ended(String),
    /// See [`PlaceError`].
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// The name of a cell, taken: until this is dropped no other process of this user has it.
#[derive(Debug)]
pub struct Shared {
    folder: PathBuf,
    socket: PathBuf,
    listener: OwnedFd,
    /// The lock goes with its descriptor.
    _lock: File,
}

/// A process that wants to join.
#[derive(Debug)]
pub struct Member {
    connection: OwnedFd,
    /// Readable when the process has ended (`pidfd_open(2)`).
    pub process: OwnedFd,
}

impl Shared {
    /// Takes a name, and lets others join from now on.
    ///
    /// # Errors
    ///
    /// See [`PlaceError`].
    pub fn take(name: &str) -> Result<Self, PlaceError> {
        let folder = user_folder()?;
        let path = folder.join(format!("{name}.lock"));
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(PlaceError::Running(name.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
        let socket = folder.join(format!("{name}.sock"));
        // One that is there is left over, as we have the lock.
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &socket)(error));
            }
            _ => {}
        }
        let made = || {
            let listener = new_socket()?;
            bind(&listener, &SocketAddrUnix::new(&*socket)?)?;
            listen(&listener, WAITING)?;
            Ok::<_, rustix::io::Errno>(listener)
        };
        let listener = made().map_err(|error| failed("listen at", &socket)(error.into()))?;
        Ok(Self {
            folder,
            socket,
            listener,
            _lock: lock,
        })
    }

    /// The folder of all of this user's.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A copy of the socket, at which [`accept`](Self::accept) waits.
    ///
    /// # Errors
    ///
    /// When there are too many descriptors.
    pub fn listener(&self) -> io::Result<OwnedFd> {
        self.listener.try_clone()
    }

    /// Waits for the next process that wants to join, which belongs to this user.
    ///
    /// # Errors
    ///
    /// The system's; the next call may have none.
    pub fn accept(listener: &OwnedFd) -> io::Result<Member> {
        let connection = accept_with(listener, SocketFlags::CLOEXEC)?;
        let peer = socket_peercred(&connection)?;
        if peer.uid != geteuid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // It waits for an answer, so that this is still its number.
        let process = pidfd_open(peer.pid, PidfdFlags::empty())?;
        Ok(Member {
            connection,
            process,
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

impl Member {
    /// Lets it in; whether it is still there.
    pub fn admit(&self, namespaces: &Namespaces) -> bool {
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
    /// Asks for the namespaces of a cell. From then on the tunnel stays until this process
    /// has ended.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn of(name: &str) -> Result<Self, JoinError> {
        let folder = user_folder()?;
        let none = || JoinError::None(name.to_owned(), others(&folder));
        if name.contains('/') {
            return Err(none());
        }
        let path = folder.join(format!("{name}.sock"));
        let asked = || {
            let socket = new_socket()?;
            connect(&socket, &SocketAddrUnix::new(&*path)?)?;
            Ok::<_, rustix::io::Errno>(socket)
        };
        let socket = asked().map_err(|_| none())?;
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

/// A hint at what there is to join.
fn others(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".sock")?.to_owned())
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    match names.is_empty() {
        true => "; `taupe exec CONF -- COMMAND` begins one".to_owned(),
        false => format!("; there is {}", names.join(", ")),
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PlaceError {
    let path = path.to_owned();
    move |source| PlaceError::Io { what, path, source }
}

/// The folder of this user's cells, which is made if need be: below `XDG_RUNTIME_DIR` if
/// that is this user's; for root below `/run`, where others cannot be first.
///
/// # Errors
///
/// See [`PlaceError`].
pub fn user_folder() -> Result<PathBuf, PlaceError> {
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
    private(&folder, user)?;
    Ok(folder)
}

fn private(folder: &Path, user: u32) -> Result<(), PlaceError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("make", folder)(error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(folder).map_err(failed("look at", folder))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(PlaceError::Unsafe {
            folder: folder.to_owned(),
            user,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{PlaceError, private};
    use rustix::process::geteuid;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn only_a_folder_of_our_own_that_is_closed_to_others_will_do() {
        let scratch = std::env::temp_dir().join(format!("taupe-sandbox-{}", std::process::id()));
        fs::create_dir(&scratch).expect("scratch");
        let user = geteuid().as_raw();
        let folder = scratch.join("taupe");
        private(&folder, user).expect("made");
        private(&folder, user).expect("found");
        let refused = |what: &str| {
            let error = private(&folder, user).expect_err(what);
            assert!(
                matches!(error, PlaceError::Unsafe { .. }),
                "{what}: {error}"
            );
        };
        assert!(private(&folder, user + 1).is_err(), "another user's");
        fs::set_permissions(&folder, Permissions::from_mode(0o750)).expect("chmod");
        refused("open to the group");
        fs::rename(&folder, scratch.join("other")).expect("rename");
        fs::set_permissions(scratch.join("other"), Permissions::from_mode(0o700)).expect("chmod");
        symlink(scratch.join("other"), &folder).expect("link");
        refused("a link");
        fs::remove_dir_all(&scratch).expect("removed");
    }
}

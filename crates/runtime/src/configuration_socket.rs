//! The configuration socket of a device: a Unix socket of the directory where `wg` looks for it.

use std::fs::{self, Permissions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use taupe_uapi::Request;
use thiserror::Error;
use tracing::debug;
use zeroize::Zeroizing;

use crate::clients::{ClientSlot, Clients, TICK};
use crate::configuration::serve_client;
use crate::file_identity::FileIdentity;
use crate::run_directory;
pub use crate::run_directory::RunDirectoryError;

/// Error of listening on a configuration socket.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another process answers on the socket.
    #[error("{} is in use: a program already runs the interface", .0.display())]
    Running(PathBuf),
    /// The directory of the socket cannot be created.
    #[error(transparent)]
    Directory(#[from] RunDirectoryError),
    /// The socket cannot be bound.
    #[error("cannot listen on {}: {source}{}", .path.display(), takes_root(.source))]
    Bind {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A descriptor that was passed in is no socket that can listen.
    #[error("cannot listen on the configuration socket that was passed in: {0}")]
    PassedIn(#[source] io::Error),
}

fn takes_root(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; it takes root",
        _ => "",
    }
}

/// The listening socket, and its file if it has one.
pub struct Listener {
    /// The socket.
    pub socket: UnixListener,
    /// The file by which clients find it; `None` if the socket was passed in.
    pub file: Option<SocketFile>,
}

/// The longest time for which a program may still hold its socket after its interface is gone. The
/// kernel closes the descriptors of a killed program one after the other.
const DYING: Duration = Duration::from_millis(500);

/// Clients that may wait until the program accepts their connections.
const BACKLOG: i32 = 128;

/// Connects without blocking if the program's queue of connections is full.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(OwnedFd::from(socket).into())
}

/// Returns true if a connection ends within `limit` without a request: the program has ended before
/// it accepted the connection.
fn ends_within(mut stream: &UnixStream, limit: Duration) -> bool {
    let limit = limit.max(Duration::from_millis(1));
    if stream.set_read_timeout(Some(limit)).is_err() {
        return false;
    }
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

/// Listens on a new socket file. Returns its identity too.
fn listen(path: &Path) -> io::Result<(UnixListener, FileIdentity)> {
    let socket = UnixListener::bind(path)?;
    let identity = fs::set_permissions(path, Permissions::from_mode(0o600))
        .and_then(|()| FileIdentity::of(path));
    match identity {
        Ok(identity) => Ok((socket, identity)),
        Err(error) => {
            // The first error matters, not one of the clean-up.
            let _ = fs::remove_file(path);
            Err(error)
        }
    }
}

/// The socket's file. It is removed when this is dropped, unless another program has replaced it.
pub struct SocketFile {
    path: PathBuf,
    identity: FileIdentity,
    is_handed_over: bool,
}

/// Removes the socket file of an interface if no program answers on it.
pub fn remove_dead(interface: &str) {
    let path = run_directory::socket(interface);
    if connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = fs::remove_file(&path);
    }
}

impl Listener {
    /// Listens on the interface's socket. Replaces the socket of a program that was killed (no
    /// program answers on it). Waits for a program that is ending.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(interface: &str) -> Result<Self, ListenError> {
        run_directory::create()?;
        Self::bind_at(run_directory::socket(interface))
    }

    fn bind_at(path: PathBuf) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind {
            path: path.clone(),
            source,
        };
        let began = Instant::now();
        loop {
            match connect(&path).map_err(|error| (error.kind(), error)) {
                Ok(stream) => match DYING.checked_sub(began.elapsed()) {
                    Some(left) if ends_within(&stream, left) => thread::sleep(DYING / 50),
                    _ => return Err(ListenError::Running(path)),
                },
                // The program does not accept, and its queue of connections is full.
                Err((io::ErrorKind::WouldBlock, _)) => return Err(ListenError::Running(path)),
                Err((io::ErrorKind::NotFound, _)) => match listen(&path) {
                    Ok((socket, identity)) => {
                        let file = Some(SocketFile::new(path, identity));
                        return Ok(Self { socket, file });
                    }
                    // `wg` removes a socket that refuses its connection. A new socket refuses
                    // connections until the kernel queues them.
                    Err(error)
                        if error.kind() == io::ErrorKind::NotFound && began.elapsed() < DYING => {}
                    Err(error) => return Err(failed(error)),
                },
                Err((io::ErrorKind::ConnectionRefused, _)) => match fs::remove_file(&path) {
                    Ok(()) => {}
                    // The program has removed it itself.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(failed(error)),
                },
                Err((_, error)) => return Err(failed(error)),
            }
        }
    }

    /// Uses a listening socket that the caller has passed in.
    ///
    /// # Errors
    /// [`ListenError::PassedIn`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self, ListenError> {
        let socket = Socket::from(fd);
        // Another kind of descriptor would fail at every `accept`.
        socket.listen(BACKLOG).map_err(ListenError::PassedIn)?;
        socket
            .set_nonblocking(false)
            .map_err(ListenError::PassedIn)?;
        let socket = OwnedFd::from(socket).into();
        Ok(Self { socket, file: None })
    }
}

impl SocketFile {
    fn new(path: PathBuf, identity: FileIdentity) -> Self {
        Self {
            path,
            identity,
            is_handed_over: false,
        }
    }

    /// Returns the socket file of an interface, which another process has created and has handed
    /// over ([`Self::hand_over`]).
    ///
    /// # Errors
    /// The system's, if there is no file.
    pub fn of(interface: &str) -> io::Result<Self> {
        let path = run_directory::socket(interface);
        let identity = FileIdentity::of(&path)?;
        Ok(Self::new(path, identity))
    }

    /// Leaves the removal to another process: the file stays when `self` is dropped.
    pub fn hand_over(&mut self) {
        self.is_handed_over = true;
    }

    /// Returns the file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file is still the one that was created.
    #[must_use]
    pub fn exists(&self) -> bool {
        FileIdentity::of(&self.path).is_ok_and(|found| found == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_handed_over && self.exists() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns true if a request gives the name of an endpoint, which has to be looked up.
#[must_use]
pub fn names_an_endpoint(request: &Request) -> bool {
    let Request::Set(set) = request else {
        return false;
    };
    let peers = &set.device.peers;
    peers
        .iter()
        .any(|peer| matches!(peer.endpoint_name, Some(Some(_))))
}

/// Answers requests.
pub trait AnswerRequest: Send + Sync + 'static {
    /// Answers a request; `None` if the device has ended.
    fn answer(&self, request: Request) -> Option<Zeroizing<String>>;

    /// Returns the index of the interface that is the scope of an endpoint's address; `None` if there
    /// is no interface of this name.
    fn interface_index(&self, name: &str) -> Option<u32>;

    /// Called when a client has left.
    fn client_left(&self) {}
}

/// Serves clients, each in a thread of its own, until the socket is shut down (Linux: accept(2) then
/// returns `EINVAL`).
pub fn serve(socket: &UnixListener, answer: &Arc<impl AnswerRequest>) {
    let clients = Arc::new(Clients::default());
    loop {
        let stream = match socket.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                debug!(%error, "accepting a configuration client failed");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        // While all places are taken, further clients wait in the kernel's queue.
        let slot = clients.admit();
        let answer = Arc::clone(answer);
        let client = move || {
            if let Err(error) = serve_stream(&*answer, stream, &slot) {
                debug!(%error, "configuration client ended");
            }
            answer.client_left();
        };
        let thread = thread::Builder::new().name("uapi client".into());
        if let Err(error) = thread.spawn(client) {
            debug!(%error, "no thread for a configuration client");
        }
    }
}

fn serve_stream(
    answer: &impl AnswerRequest,
    mut stream: UnixStream,
    slot: &ClientSlot,
) -> io::Result<()> {
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(TICK))?;
    let scopes = |name: &str| answer.interface_index(name);
    serve_client(&mut stream, slot, &scopes, |request| answer.answer(request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn an_unaccepted_connection_ends_with_its_listener() {
        let folder = std::env::temp_dir().join(format!("taupe-uapi-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("dying.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        assert!(!ends_within(&stream, Duration::from_millis(50)));
        let dying = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(listener);
        });
        assert!(ends_within(&stream, Duration::from_secs(10)));
        dying.join().unwrap();
        let gone = connect(&path).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::ConnectionRefused);
        fs::remove_dir_all(&folder).unwrap();
    }

    /// ext4 gives the new file the inode of the old one, when its socket is closed too.
    #[test]
    fn a_socket_file_at_the_same_path_belongs_to_another_program() {
        let name = format!("taupe-replaced-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let Listener { socket, file } = Listener::bind_at(path.clone()).unwrap();
        let file = file.unwrap();
        assert!(file.exists());
        fs::remove_file(&path).unwrap();
        drop(socket);
        let other = UnixListener::bind(&path).unwrap();
        assert!(!file.exists());
        drop(file);
        assert!(path.exists(), "the file of another program was removed");
        drop(other);
        fs::remove_file(&path).unwrap();
    }

    /// Like `wg`, which looks for devices while others begin.
    #[test]
    fn a_client_that_removes_refusing_sockets_does_not_prevent_listening() {
        let name = format!("taupe-removed-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let refused = connect(&path)
                        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                    if refused {
                        let _ = fs::remove_file(&path);
                    }
                }
            });
            let failed = (0..2_000).find_map(|_| Listener::bind_at(path.clone()).err());
            ended.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }

    #[test]
    fn what_cannot_listen_is_refused_when_it_is_passed_in() {
        let file = fs::File::open("/dev/null").unwrap().into();
        let (connected, _other) = UnixStream::pair().unwrap();
        for fd in [file, OwnedFd::from(connected)] {
            let refused = Listener::from_fd(fd);
            assert!(matches!(refused, Err(ListenError::PassedIn(_))));
        }
        let folder = std::env::temp_dir();
        let path = folder.join(format!("taupe-passed-{}.sock", std::process::id()));
        let bound = UnixListener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(Listener::from_fd(bound.into()).is_ok());
    }

    #[test]
    fn a_listener_with_a_full_queue_is_running() {
        let path = std::env::temp_dir().join(format!("taupe-full-{}.sock", std::process::id()));
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        // The kernel queues one connection more than the backlog.
        listener.listen(0).unwrap();
        let first = connect(&path);
        let second = connect(&path);
        fs::remove_file(&path).unwrap();
        first.unwrap();
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

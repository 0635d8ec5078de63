//! The configuration socket: accepts connections, and passes complete, validated requests to the
//! control loop.

use std::fs::{self, Permissions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno as SystemError;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use taupe_os_linux::run_directory;
use taupe_runtime::clients::{ClientSlot, Clients, TICK};
use taupe_runtime::configuration::serve_client;
use taupe_uapi::Request;
use tracing::debug;

use crate::lifecycle::{StartError, spawn};
use crate::shared::{Command, Shared};

/// The listening socket, and the file by which it is reached if it has one.
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    pub(crate) file: Option<SocketFile>,
}

/// The longest time for which a program may still hold its socket after its interface is gone. The
/// kernel closes the descriptors of a killed program one after the other.
const DYING: Duration = Duration::from_millis(500);

/// Connects without blocking if the program's queue of connections is full.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
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

/// Listens on a new socket file. Returns its inode too.
fn listen(path: &Path) -> io::Result<(UnixListener, u64)> {
    let socket = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok((socket, fs::metadata(path)?.ino()))
}

/// The socket's file. It is removed when this is dropped, unless another program has replaced it.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Listens on the interface's socket. Replaces the socket of a program that was killed (no
    /// program answers on it). Waits for a program that is ending.
    pub(crate) fn bind(interface: &str) -> Result<Self, StartError> {
        let path = Path::new(run_directory::PATH).join(format!("{interface}.sock"));
        run_directory::create()?;
        Self::bind_at(path)
    }

    fn bind_at(path: PathBuf) -> Result<Self, StartError> {
        let failed = |source| StartError::Uapi {
            path: path.clone(),
            source,
        };
        let began = Instant::now();
        loop {
            match connect(&path).map_err(|error| (error.kind(), error)) {
                Ok(stream) => match DYING.checked_sub(began.elapsed()) {
                    Some(left) if ends_within(&stream, left) => thread::sleep(DYING / 50),
                    _ => return Err(StartError::Running(path)),
                },
                // The program does not accept, and its queue of connections is full.
                Err((io::ErrorKind::WouldBlock, _)) => return Err(StartError::Running(path)),
                Err((io::ErrorKind::NotFound, _)) => match listen(&path) {
                    Ok((socket, inode)) => {
                        let file = Some(SocketFile { path, inode });
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
    pub(crate) fn from_fd(fd: OwnedFd) -> Result<Self, StartError> {
        let socket = UnixListener::from(fd);
        socket
            .set_nonblocking(false)
            .map_err(|source| StartError::System {
                what: "cannot use the configuration socket that was passed in",
                source,
            })?;
        Ok(Self { socket, file: None })
    }
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file is still the one that was created.
    pub(crate) fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.exists() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn names_an_endpoint(request: &Request) -> bool {
    let Request::Set(set) = request else {
        return false;
    };
    let peers = &set.device.peers;
    peers
        .iter()
        .any(|peer| matches!(peer.endpoint_name, Some(Some(_))))
}

/// Serves clients until the listener is shut down.
pub(crate) fn run(shared: &Arc<Shared>, listener: &UnixListener) {
    let clients = Arc::new(Clients::default());
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // accept(2) returns EINVAL after a shutdown.
            Err(error) if error.raw_os_error() == Some(SystemError::INVAL.raw_os_error()) => return,
            Err(error) => {
                debug!(%error, "accepting a configuration client failed");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        // While all places are taken, further clients wait in the kernel's queue.
        let slot = clients.admit();
        let shared = Arc::clone(shared);
        let client = move || {
            if let Err(error) = serve(&shared, stream, &slot) {
                debug!(%error, "configuration client ended");
            }
            // Requests and answers take much more memory than the state they leave, and peers may
            // have been removed.
            taupe_os_linux::memory::release();
        };
        if let Err(error) = spawn("uapi client", client) {
            debug!(%error, "no thread for a configuration client");
        }
    }
}

fn serve(shared: &Shared, mut stream: UnixStream, slot: &ClientSlot) -> io::Result<()> {
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(TICK))?;
    serve_client(
        &mut stream,
        slot,
        taupe_os_linux::interface::index,
        |request| {
            if names_an_endpoint(&request) {
                shared.resolver.prepare();
            }
            let (sender, answer) = mpsc::sync_channel(1);
            shared.send(Command::Uapi(request, sender));
            answer.recv().ok()
        },
    )
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
    fn a_listener_with_a_full_queue_is_running() {
        let path = std::env::temp_dir().join(format!("taupe-full-{}.sock", std::process::id()));
        let none = SocketFlags::empty();
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, none, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        // The kernel queues one connection more than the backlog.
        rustix::net::listen(&listener, 0).unwrap();
        let first = connect(&path);
        let second = connect(&path);
        fs::remove_file(&path).unwrap();
        first.unwrap();
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

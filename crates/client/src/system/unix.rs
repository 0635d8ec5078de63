//! Unix sockets in a folder.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

pub use std::os::unix::net::UnixStream as Stream;

use super::ANSWER_TIMEOUT;

const DIRECTORY: &str = "/var/run/wireguard";

const SUFFIX: &str = ".sock";

/// Returns the names of all sockets with a listener.
pub(crate) fn interfaces() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let file = entry?.file_name();
        // No interface has a name that is not UTF-8.
        let name = file.to_str().and_then(|file| file.strip_suffix(SUFFIX));
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            continue;
        };
        if matches!(connect(name), Ok(Some(_)) | Err(_)) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Connects to the device of that name, with [`ANSWER_TIMEOUT`] as read timeout. Returns `None` if
/// no user-space process runs it. Removes a socket without a listener.
pub(crate) fn connect(interface: &str) -> io::Result<Option<Stream>> {
    let Some(path) = path(interface) else {
        return Ok(None);
    };
    match connect_to(&path) {
        Ok(stream) => Ok(Some(stream)),
        // The path exceeds the length of a socket address.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Another process may have removed it already.
            let _ = fs::remove_file(&path);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Connects to a socket of a process that may be stopped. If its queue of connections is full, an
/// ordinary connect would block indefinitely; here connecting, reading and writing each fail with
/// [`io::ErrorKind::WouldBlock`] after two seconds.
///
/// # Errors
/// Returns the system's error.
pub fn connect_to(path: &Path) -> io::Result<Stream> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    // The write timeout applies to connecting too (socket(7)).
    socket.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    socket.connect(&address)?;
    Ok(OwnedFd::from(socket).into())
}

/// Returns the path of a device's configuration socket.
#[must_use]
pub fn socket_path(interface: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{interface}{SUFFIX}"))
}

/// Returns the path of the socket, if it exists.
fn path(interface: &str) -> Option<PathBuf> {
    if interface.contains('/') {
        return None;
    }
    let path = socket_path(interface);
    let found = fs::metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    found.then_some(path)
}

/// Sets the timeout of reads and writes.
pub(crate) fn set_timeout(stream: Stream, timeout: Duration) -> io::Result<Stream> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(stream)
}

/// Returns true if an error is a timeout.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_does_not_block_for_ever() {
        let path = std::env::temp_dir().join(format!("taupe-queue-{}", std::process::id()));
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        let address = SockAddr::unix(&path).expect("an address");
        listener.bind(&address).expect("bound");
        // The kernel queues one connection more than the backlog.
        listener.listen(0).expect("listens");
        let first = connect_to(&path);
        let second = connect_to(&path);
        fs::remove_file(&path).expect("removed");
        first.expect("connected");
        let error = second.expect_err("the queue is full");
        assert!(is_timeout(&error), "{error}");
    }
}

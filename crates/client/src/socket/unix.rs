//! Sockets in a folder, of systems that have such.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use super::PATIENCE;

const DIRECTORY: &str = "/var/run/wireguard";

const SUFFIX: &str = ".sock";

/// A connection.
pub(crate) type Stream = UnixStream;

/// The names of all sockets on which somebody listens.
pub(crate) fn interfaces() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let file = entry?.file_name();
        // A name that is not text is none of an interface that can be called.
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

/// Connects to the device of that name; reads of the connection wait for [`PATIENCE`] at most.
/// `None` if no program in user space is that device. A socket without a listener is removed.
pub(crate) fn connect(interface: &str) -> io::Result<Option<Stream>> {
    let Some(path) = path(interface) else {
        return Ok(None);
    };
    match connect_to(&path) {
        Ok(stream) => Ok(Some(stream)),
        // Longer than an address can be.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Whoever is faster has done the same.
            let _ = fs::remove_file(&path);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Connects to a socket of a program that may have stopped: its queue of connections may be
/// full, and connecting would block for ever. Connecting, reading and writing fail with
/// [`io::ErrorKind::WouldBlock`] after two seconds each.
///
/// # Errors
/// The system's.
pub fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // Connecting has this limit too (socket(7)).
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.connect(&address)?;
    Ok(OwnedFd::from(socket).into())
}

/// Where the socket is, if there is one.
fn path(interface: &str) -> Option<PathBuf> {
    if interface.contains('/') {
        return None;
    }
    let path = Path::new(DIRECTORY).join(format!("{interface}{SUFFIX}"));
    let found = fs::metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    found.then_some(path)
}

/// Lets the program at the other end be silent for so long and no longer.
pub(crate) fn be_patient(stream: Stream, patience: Duration) -> io::Result<Stream> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Checks whether an error means that the program was silent for longer.
pub(crate) fn is_silence(error: &io::Error) -> bool {
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
        // The kernel lets one more connection wait than it was asked for.
        listener.listen(0).expect("listens");
        let first = connect_to(&path);
        let second = connect_to(&path);
        fs::remove_file(&path).expect("removed");
        first.expect("connected");
        let error = second.expect_err("the queue is full");
        assert!(is_silence(&error), "{error}");
    }
}

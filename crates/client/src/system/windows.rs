//! Named pipes, as in wireguard-windows.

use std::io;
use std::time::Duration;
use taupe_os_windows::pipe;

use super::ANSWER_TIMEOUT;

pub use pipe::Stream;

/// Returns the names of all tunnels with a pipe.
pub(crate) fn interfaces() -> io::Result<Vec<String>> {
    pipe::tunnels()
}

/// Connects to the device of that name. Returns `None` if there is none.
pub(crate) fn connect(interface: &str) -> io::Result<Option<Stream>> {
    if interface.contains(['\\', '/']) {
        return Ok(None);
    }
    let Some(stream) = Stream::connect(&pipe::path_of_tunnel(interface), ANSWER_TIMEOUT)? else {
        return Ok(None);
    };
    // Only the system and administrators may receive keys.
    if !stream.is_owned_by_administrators()? {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "neither the system nor an administrator owns the pipe of this name, so no key is sent \
             to it",
        ));
    }
    Ok(Some(stream))
}

/// Sets the timeout of reads and writes.
pub(crate) fn set_timeout(mut stream: Stream, timeout: Duration) -> io::Result<Stream> {
    stream.set_timeout(timeout);
    Ok(stream)
}

/// Returns true if an error is a timeout.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

//! Named pipes, as wireguard-windows has them.

use std::io;
use std::time::Duration;
use taupe_os_windows::pipe;

use super::PATIENCE;

/// A connection.
pub(crate) type Stream = pipe::Stream;

/// The names of all tunnels that have a pipe.
pub(crate) fn interfaces() -> io::Result<Vec<String>> {
    pipe::tunnels()
}

/// A connection to the device of that name; `None` when there is none.
pub(crate) fn connect(interface: &str) -> io::Result<Option<Stream>> {
    if interface.contains(['\\', '/']) {
        return Ok(None);
    }
    let Some(stream) = Stream::connect(&pipe::of_tunnel(interface), PATIENCE)? else {
        return Ok(None);
    };
    // Keys are told to nobody else.
    if !stream.is_administrators()? {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the pipe of this name was made neither by the system nor by an administrator; no \
             key is told to it",
        ));
    }
    Ok(Some(stream))
}

/// Lets the program at the other end be silent for so long and no longer.
pub(crate) fn be_patient(mut stream: Stream, patience: Duration) -> io::Result<Stream> {
    stream.set_patience(patience);
    Ok(stream)
}

/// Checks whether an error means that the program was silent for longer.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

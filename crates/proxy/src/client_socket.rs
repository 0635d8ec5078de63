//! Non-blocking socket of a client, with its readiness.

use mio::net::TcpStream;
use std::io::{self, ErrorKind, Read as _, Write as _};

/// The most bytes that a client may send after its request and that are discarded.
pub(crate) const MAX_DISCARDED: usize = 1 << 20;

/// A client's socket with its readiness. The system reports only changes of readiness.
pub(crate) struct ClientSocket {
    pub(crate) stream: TcpStream,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
}

impl ClientSocket {
    /// Reads. Returns `None` if no data is available now.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Self {
            stream,
            is_readable,
            ..
        } = self;
        retry_interrupted(is_readable, || stream.read(buffer))
    }

    /// Writes. Returns `None` if there is no room now.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let Self {
            stream,
            is_writable,
            ..
        } = self;
        match retry_interrupted(is_writable, || stream.write(bytes))? {
            Some(0) if !bytes.is_empty() => Err(ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }
}

/// Reads and discards up to `most` bytes. Returns true if there may be more.
pub(crate) fn discard(socket: &mut ClientSocket, most: usize) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let mut total = 0;
    while let Some(count) = socket.read(&mut buffer)? {
        total += count;
        if count == 0 || total >= most {
            return Ok(false);
        }
    }
    Ok(true)
}

fn retry_interrupted(
    is_ready: &mut bool,
    mut operation: impl FnMut() -> io::Result<usize>,
) -> io::Result<Option<usize>> {
    if !*is_ready {
        return Ok(None);
    }
    loop {
        match operation() {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // `NotConnected`: some systems hand over a connection before it is established.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::NotConnected
                ) =>
            {
                *is_ready = false;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
}

//! The configuration protocol itself (the cross-platform userspace interface), for requests that
//! `wg` does not support or sends too slowly.

use crate::ensure;
use crate::error::{Error, Result};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folder of the configuration sockets of all userspace implementations.
pub const SOCKETS: &str = "/var/run/wireguard";

/// Returns the path of an interface's configuration socket.
pub fn socket(interface: &str) -> PathBuf {
    Path::new(SOCKETS).join(format!("{interface}.sock"))
}

/// Sends one request on a connection of its own. Returns the whole answer, which ends with `errno=`
/// and a blank line.
///
/// # Errors
///
/// [`Error::Io`] if there is no answer within 10 seconds.
pub fn exchange(interface: &str, request: &str) -> Result<String> {
    let what = || format!("configuration socket of {interface}");
    let mut stream = UnixStream::connect(socket(interface)).map_err(Error::io(what()))?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .map_err(Error::io(what()))?;
    stream
        .write_all(request.as_bytes())
        .map_err(Error::io(what()))?;
    let mut answer = Vec::new();
    let mut block = [0; 16 * 1024];
    while !answer.ends_with(b"\n\n") {
        let size = stream.read(&mut block).map_err(Error::io(what()))?;
        if size == 0 {
            break;
        }
        answer.extend(block.iter().take(size));
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Sets the given lines, each ending in a line feed.
///
/// # Errors
///
/// [`Error::Unmet`] if they are refused, and as [`exchange`].
pub fn set(interface: &str, lines: &str) -> Result<()> {
    let answer = exchange(interface, &format!("set=1\n{lines}\n"))?;
    ensure!(answer == "errno=0\n\n", "{interface} answers {answer:?}");
    Ok(())
}

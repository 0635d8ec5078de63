//! Listening Unix sockets of `taupe metrics` and `taupe web`.

use rustix::fs::Mode;
use rustix::process::umask;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Reason why nothing listens at a path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenUnixError {
    #[error("cannot listen at {} (--unix): {source}; choose another path", path.display())]
    System { path: PathBuf, source: io::Error },
    #[error("cannot listen at {} (--unix): another program serves it; choose another path", .0.display())]
    Taken(PathBuf),
    #[error("cannot listen at {} (--unix): the file is no socket; choose another path", .0.display())]
    NotASocket(PathBuf),
}

/// Binds a socket that root and its group can use. Replaces one that nobody serves any more.
pub(crate) fn bind_unix(path: &Path) -> Result<UnixListener, ListenUnixError> {
    let failed = |source| ListenUnixError::System {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenUnixError::NotASocket(path.to_owned()));
        }
        Ok(_) => match taupe_client::connect_to(path) {
            Ok(_) => return Err(ListenUnixError::Taken(path.to_owned())),
            // Only this error says that no process has the socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        },
        Err(_) => {}
    }
    // There is one thread only.
    let before = umask(Mode::from_raw_mode(0o117));
    let bound = UnixListener::bind(path);
    umask(before);
    bound.map_err(failed)
}

//! Listening Unix sockets of `taupe metrics` and `taupe web`.

use rustix::fs::Mode;
use rustix::process::umask;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
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

/// A listening socket, and its file.
pub(crate) struct ListeningSocket {
    pub(crate) listener: UnixListener,
    pub(crate) file: SocketFile,
}

/// The file of a socket. It is removed when this is dropped, or when a signal ends the process, unless
/// another program has replaced it.
pub(crate) struct SocketFile(FileIdentity);

#[derive(Clone)]
struct FileIdentity {
    path: PathBuf,
    /// Device and number of the file.
    numbers: (u64, u64),
}

impl FileIdentity {
    fn numbers_at(path: &Path) -> io::Result<(u64, u64)> {
        let found = fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino()))
    }

    fn remove(&self) {
        if Self::numbers_at(&self.path).is_ok_and(|it| it == self.numbers) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let identity = FileIdentity {
            path: std::path::absolute(path)?,
            numbers: FileIdentity::numbers_at(path)?,
        };
        // nohup(1) and shells have some ignored.
        let ignored = ignored_signals();
        let ending = [SIGTERM, SIGINT, SIGHUP];
        let is_ignored = |signal: &i32| ignored >> (signal - 1) & 1 != 0;
        let mut signals = Signals::new(ending.iter().filter(|signal| !is_ignored(signal)))?;
        let file = identity.clone();
        let wait = move || {
            for signal in signals.forever() {
                file.remove();
                let _ = emulate_default_handler(signal);
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(wait)?;
        Ok(Self(identity))
    }
}

/// Returns the signals that this process ignores, as bits (`proc_pid_status(5)`).
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap_or(0))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// Binds a socket that root and its group can use. Replaces one that nobody serves any more.
pub(crate) fn bind_unix(path: &Path) -> Result<ListeningSocket, ListenUnixError> {
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
    let listener = bound.map_err(failed)?;
    let file = SocketFile::of(path).map_err(failed)?;
    Ok(ListeningSocket { listener, file })
}

#[cfg(test)]
mod tests {
    use super::{FileIdentity, SocketFile};
    use std::fs;

    #[test]
    fn only_the_own_file_is_removed() {
        let name = format!("taupe-listening-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder");
        let path = folder.join("socket");
        let file = |path: &std::path::Path| {
            fs::write(path, "").expect("a file");
            let path = path.to_owned();
            let numbers = FileIdentity::numbers_at(&path).expect("a file");
            SocketFile(FileIdentity { path, numbers })
        };
        drop(file(&path));
        assert!(!path.exists());
        let first = file(&path);
        // The first file stays, so that the other one has another number.
        fs::rename(&path, folder.join("old")).expect("renamed");
        fs::write(&path, "").expect("a file");
        drop(first);
        let is_there = path.exists();
        fs::remove_dir_all(&folder).expect("removed");
        assert!(is_there);
    }
}

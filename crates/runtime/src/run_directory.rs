//! The directory of the configuration sockets.

use rustix::process::geteuid;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The directory in which `wg` looks for the sockets of userspace implementations.
pub(crate) const PATH: &str = "/var/run/wireguard";

const PRIVATE: u32 = 0o700;
const WRITABLE_BY_ANYBODY: u32 = 0o002;

/// Error of creating the directory of the sockets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunDirectoryError {
    /// The directory cannot be created or examined.
    #[error("cannot create {}, the directory of configuration sockets: {source}", .path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The name exists and is not a directory.
    #[error("{}, the directory of configuration sockets, is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// Other users can write to the directory: they could replace the socket with their own and
    /// receive the private key.
    #[error(
        "{} is not safe for configuration sockets: it belongs to user {owner} and has mode \
         {mode:o}, but must belong to root or to this process's user, and not be writable by \
         others", .path.display()
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
}

/// Returns the path of an interface's configuration socket.
pub(crate) fn socket(interface: &str) -> PathBuf {
    Path::new(PATH).join(format!("{interface}.sock"))
}

/// Creates [`PATH`] unless it exists. A new directory has mode 0700, regardless of the umask; the
/// mode of an existing one stays.
///
/// # Errors
///
/// See [`RunDirectoryError`].
pub(crate) fn create() -> Result<(), RunDirectoryError> {
    create_at(Path::new(PATH))
}

fn create_at(path: &Path) -> Result<(), RunDirectoryError> {
    let io = |source| RunDirectoryError::Io {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io)?;
    }
    match DirBuilder::new().mode(PRIVATE).create(path) {
        // mkdir(2) removes the bits of the umask from the mode.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(PRIVATE)).map_err(io),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            check(path, &fs::metadata(path).map_err(io)?)
        }
        Err(error) => Err(io(error)),
    }
}

fn check(path: &Path, found: &Metadata) -> Result<(), RunDirectoryError> {
    if !found.is_dir() {
        return Err(RunDirectoryError::NotADirectory(path.to_owned()));
    }
    let ours = found.uid() == 0 || found.uid() == geteuid().as_raw();
    if !ours || found.mode() & WRITABLE_BY_ANYBODY != 0 {
        return Err(RunDirectoryError::Unsafe {
            path: path.to_owned(),
            owner: found.uid(),
            mode: found.mode() & 0o7777,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{RunDirectoryError, create_at};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::{Path, PathBuf};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let unique = format!("taupe-run-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(unique);
            fs::create_dir(&path).expect("scratch directory");
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("metadata").mode() & 0o7777
    }

    #[test]
    fn a_new_directory_is_private_and_its_parents_are_made() {
        let scratch = Scratch::new("new");
        let path = scratch.0.join("run/wireguard");
        create_at(&path).expect("created");
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn one_that_is_there_stays_as_it_is() {
        let scratch = Scratch::new("there");
        for found in [0o700, 0o755, 0o770] {
            fs::set_permissions(&scratch.0, Permissions::from_mode(found)).expect("chmod");
            create_at(&scratch.0).expect("accepted");
            assert_eq!(mode(&scratch.0), found);
        }
    }

    #[test]
    fn one_that_anybody_can_write_to_is_refused_also_when_sticky() {
        let scratch = Scratch::new("open");
        for found in [0o702, 0o777, 0o1777] {
            fs::set_permissions(&scratch.0, Permissions::from_mode(found)).expect("chmod");
            let error = create_at(&scratch.0).expect_err("refused");
            assert!(matches!(error, RunDirectoryError::Unsafe { mode, .. } if mode == found));
        }
    }

    #[test]
    fn a_file_of_that_name_is_refused() {
        let scratch = Scratch::new("file");
        let path = scratch.0.join("wireguard");
        fs::write(&path, "").expect("file");
        let error = create_at(&path).expect_err("refused");
        assert!(matches!(error, RunDirectoryError::NotADirectory(named) if named == path));
    }
}

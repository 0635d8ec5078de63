//! The file of the configuration socket. The device ends if the file is removed.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, inotify, open};
use rustix::io::Errno;
use taupe_runtime::configuration_socket::SocketFile;

/// The configuration socket's file, with a watch for its removal.
pub(crate) struct WatchedSocket {
    /// Removed when this is dropped, unless it is handed over.
    file: SocketFile,
    watch: RemovalWatch,
}

impl WatchedSocket {
    pub(crate) fn new(file: SocketFile) -> Result<Self, Errno> {
        let watch = RemovalWatch::new(file.path())?;
        Ok(Self { file, watch })
    }

    /// Leaves the removal of the file to another process.
    pub(crate) fn hand_over_file(&mut self) {
        self.file.hand_over();
    }

    /// Returns a descriptor that becomes readable when [`Self::is_gone`] should be called.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.watch.events.as_fd()
    }

    /// Reads pending events and checks whether the file is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.watch.is_gone()
    }
}

/// An inotify watch on a file, which needs the file's path only at its start.
struct RemovalWatch {
    file: OwnedFd,
    events: OwnedFd,
}

impl RemovalWatch {
    fn new(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty())?;
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let events = inotify::init(flags)?;
        // While the socket is open, its removal changes the number of its links (ATTRIB). So do other
        // changes of its attributes.
        let flags = inotify::WatchFlags::ATTRIB
            | inotify::WatchFlags::DELETE_SELF
            | inotify::WatchFlags::MOVE_SELF;
        inotify::add_watch(&events, path, flags)?;
        Ok(Self { file, events })
    }

    fn is_gone(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.events, &mut buffer);
        let mut is_gone = false;
        loop {
            match events.next() {
                Ok(event) => {
                    let gone = inotify::ReadFlags::DELETE_SELF | inotify::ReadFlags::MOVE_SELF;
                    is_gone |= event.events().intersects(gone);
                }
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        is_gone || fstat(&self.file).is_ok_and(|file| file.st_nlink == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions, remove_file, rename, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    /// Sockets in a folder of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let name = format!("taupe-watch-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).expect("a folder");
            Self(path)
        }

        fn listen(&self, name: &str) -> (PathBuf, UnixListener) {
            let path = self.0.join(name);
            let socket = UnixListener::bind(&path).expect("a socket");
            (path, socket)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_socket_with_other_attributes_is_not_gone() {
        let folder = Folder::new("attributes");
        let (path, socket) = folder.listen("one.sock");
        let watch = RemovalWatch::new(&path).expect("a watch");
        assert!(!watch.is_gone());
        set_permissions(&path, Permissions::from_mode(0o660)).expect("root or the owner");
        assert!(!watch.is_gone());
        drop(socket);
        assert!(!watch.is_gone(), "it is closed");
    }

    #[test]
    fn a_socket_is_gone_if_its_file_is_removed_moved_or_replaced() {
        let folder = Folder::new("removal");
        let (other, _other) = folder.listen("other.sock");
        let changes: [&dyn Fn(&Path); 3] = [
            &|path| remove_file(path).expect("removed"),
            &|path| rename(path, folder.0.join("moved.sock")).expect("moved"),
            &|path| rename(&other, path).expect("replaced"),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (path, _socket) = folder.listen(&format!("{number}.sock"));
            let watch = RemovalWatch::new(&path).expect("a watch");
            change(&path);
            assert!(watch.is_gone(), "{number}");
        }
    }
}

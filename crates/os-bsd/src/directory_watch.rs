//! Notice of changes to the entries of a directory (kqueue).

use std::{fs::File, io, os::fd::AsRawFd as _, path::Path};

use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};

/// A watched directory.
#[derive(Debug)]
pub struct DirectoryWatch {
    queue: Kqueue,
    /// Open as long as it is watched.
    _directory: File,
}

impl DirectoryWatch {
    /// Begins to watch a directory.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new(path: &Path) -> io::Result<Self> {
        let directory = File::open(path)?;
        let queue = Kqueue::new()?;
        // NOTE_WRITE of a directory: an entry was added or removed (kqueue(2)). EV_CLEAR: each change
        // is reported once.
        let watch = KEvent::new(
            directory.as_raw_fd() as usize,
            EventFilter::EVFILT_VNODE,
            EvFlags::EV_ADD | EvFlags::EV_CLEAR,
            FilterFlag::NOTE_WRITE | FilterFlag::NOTE_DELETE | FilterFlag::NOTE_RENAME,
            0,
            0,
        );
        queue.kevent(&[watch], &mut [], None)?;
        Ok(Self {
            queue,
            _directory: directory,
        })
    }

    /// Waits for a change since the last one, or since the beginning.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn wait(&self) -> io::Result<()> {
        let nothing = KEvent::new(
            0,
            EventFilter::EVFILT_VNODE,
            EvFlags::empty(),
            FilterFlag::empty(),
            0,
            0,
        );
        match self.queue.kevent(&[], &mut [nothing], None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

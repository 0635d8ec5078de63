//! Waiting for a descriptor until another thread ends that.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{pipe, write},
};

/// Ends waits, from any thread. A pipe, so that an end between two waits is not lost.
#[derive(Debug)]
pub(crate) struct End {
    has_come: AtomicBool,
    reader: OwnedFd,
    writer: OwnedFd,
}

impl End {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = pipe()?;
        for fd in [&reader, &writer] {
            close_on_exec(fd.as_fd())?;
        }
        Ok(Self {
            has_come: AtomicBool::new(false),
            reader,
            writer,
        })
    }

    /// Ends every wait, also later ones.
    pub(crate) fn come(&self) {
        if !self.has_come.swap(true, Ordering::AcqRel) {
            // The byte stays in the pipe.
            let _ = write(&self.writer, &[0]);
        }
    }

    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }

    /// Waits until `fd` is readable or the end comes.
    pub(crate) fn or_readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut fds = [
            PollFd::new(fd, PollFlags::POLLIN),
            PollFd::new(self.reader.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads without waiting from now on, and closes the descriptor in programs that this one starts.
pub(crate) fn set_up(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    close_on_exec(fd)
}

pub(crate) fn close_on_exec(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(())
}

//! Waiting for a descriptor until another thread ends that.

use std::{
    io::{self, PipeReader, PipeWriter, Write as _},
    os::fd::{AsFd as _, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// Ends waits, from any thread. A pipe, so that an end between two waits is not lost.
#[derive(Debug)]
pub(crate) struct End {
    has_come: AtomicBool,
    reader: PipeReader,
    writer: PipeWriter,
}

impl End {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self {
            has_come: AtomicBool::new(false),
            reader,
            writer,
        })
    }

    /// Ends every wait, also later ones.
    pub(crate) fn come(&self) {
        if !self.has_come.swap(true, Ordering::AcqRel) {
            // The byte stays in the pipe, which has room for it. `write_all` tries again if it is
            // interrupted.
            let _ = (&self.writer).write_all(&[0]);
        }
    }

    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }

    /// Waits until `fd` is readable or the end comes. May return earlier, so that the caller tries
    /// again.
    pub(crate) fn or_readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.or(fd, PollFlags::POLLIN, PollTimeout::NONE).map(drop)
    }

    /// Waits until `fd` is writable or the end comes. Returns false if the time has passed.
    pub(crate) fn or_writable(&self, fd: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        self.or(fd, PollFlags::POLLOUT, time)
    }

    fn or(&self, fd: BorrowedFd<'_>, flags: PollFlags, time: PollTimeout) -> io::Result<bool> {
        let mut fds = [
            PollFd::new(fd, flags),
            PollFd::new(self.reader.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, time) {
            Ok(ready) => Ok(ready != 0),
            Err(Errno::EINTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Waits until `fd` is readable. Returns false if the deadline has passed, and possibly before.
pub(crate) fn readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    let time = match deadline {
        None => PollTimeout::NONE,
        Some(deadline) => {
            // Rounded up, so that the time has passed afterwards.
            let left = deadline.saturating_duration_since(Instant::now());
            let milliseconds = left.as_nanos().div_ceil(1_000_000);
            let milliseconds = i32::try_from(milliseconds).unwrap_or(i32::MAX);
            PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
        }
    };
    match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], time) {
        Ok(ready) => Ok(ready != 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
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

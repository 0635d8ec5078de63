//! The child process of `taupe metrics` and `taupe web`, which parses requests and has no rights.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use taupe_broker::CopiedLog;
use taupe_os_linux::message_socket;

use crate::listening::ListeningSocket;

/// The process and its socket. It ends when this is dropped.
pub(crate) struct RequestServer {
    child: Child,
    socket: OwnedFd,
    log: CopiedLog,
}

impl RequestServer {
    /// Starts the process. `run` receives its standard input and its output. The output does not go to the
    /// terminal directly, because an attacker in the process could send escape sequences.
    pub(crate) fn start(
        run: impl FnOnce(&OwnedFd, &OwnedFd) -> io::Result<Child>,
    ) -> io::Result<Self> {
        let (socket, theirs) = message_socket::pair()?;
        let (log, output) = UnixStream::pair()?;
        let log = CopiedLog::begin(log)?;
        let child = run(&theirs, &output.into())?;
        Ok(Self { child, socket, log })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Waits until the process has ended and all of its output is printed.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        let ended = self.child.wait()?;
        self.log.finish();
        Ok(ended)
    }
}

impl Drop for RequestServer {
    fn drop(&mut self) {
        // It has ended, or must not outlive this process.
        let _ = self.child.kill();
        let _ = self.wait();
    }
}

/// Returns the descriptors of listening sockets in the order in which both servers expect them.
pub(crate) fn descriptors<'a>(
    tcp: Option<&'a TcpListener>,
    unix: Option<&'a ListeningSocket>,
) -> Vec<BorrowedFd<'a>> {
    let unix = unix.map(|it| it.listener.as_fd());
    tcp.map(TcpListener::as_fd)
        .into_iter()
        .chain(unix)
        .collect()
}

//! TCP connections: the state that a task and the thread share, and the task's handle.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use taupe_stack::keepalive::Keepalive;
use taupe_stack::stream::Stream;
use taupe_stack::tcp::RecvError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::closed;
use crate::signals::{Signal, Signals};

/// A TCP connection through the tunnel.
///
/// Writes are sent at once, without Nagle's algorithm: use a buffer for many small ones. A write
/// succeeds when the connection's buffer has taken the bytes.
/// `AsyncWriteExt::shutdown` sends a FIN after the data; reads go on until the other side's FIN. A connection with data that nobody acknowledges ends 120 s
/// after the last segment with [`ErrorKind::TimedOut`]. An idle one stays open unless it has a
/// [`Keepalive`].
///
/// Dropping it sends the written data and a FIN in the background. The connection is reset if unread data
/// remains or data arrives later (RFC 1122 §4.2.2.13), if the other side acknowledges nothing for 60 s,
/// or after 5 minutes (60 s if the tunnel has more than 1024 connections). `tokio::io::split` makes halves for two tasks.
pub struct TcpStream {
    shared: Arc<Connection>,
    signals: Signals,
}

/// A connection, as a task and the thread share it.
pub(crate) struct Connection {
    number: usize,
    local: SocketAddr,
    remote: SocketAddr,
    state: Mutex<ConnectionState>,
    /// True if the thread knows that a task has changed the connection.
    is_due: AtomicBool,
}

pub(crate) struct ConnectionState {
    /// `None` after the thread has closed the connection.
    pub(crate) stream: Option<Stream>,
    /// Reason for which the thread has closed the connection.
    pub(crate) failure: Option<ErrorKind>,
    /// True after the task has dropped its handle.
    pub(crate) is_dropped: bool,
    is_shut_down: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Connection {
    pub(crate) fn new(number: usize, stream: Stream) -> Self {
        Self {
            number,
            local: stream.local(),
            remote: stream.remote(),
            state: Mutex::new(ConnectionState {
                stream: Some(stream),
                failure: None,
                is_dropped: false,
                is_shut_down: false,
                reader: None,
                writer: None,
            }),
            is_due: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Records that the thread looks at the connection now.
    pub(crate) fn begin_service(&self) {
        self.is_due.store(false, Ordering::Release);
    }
}

impl ConnectionState {
    /// Takes the wakers of tasks that can go on.
    pub(crate) fn ready(&mut self) -> [Option<Waker>; 2] {
        let Some(stream) = &mut self.stream else {
            return [self.reader.take(), self.writer.take()];
        };
        let socket = stream.socket();
        let can_read = socket.can_recv() || !socket.may_recv();
        let can_write = socket.can_send() || !socket.may_send();
        [
            self.reader.take_if(|_| can_read),
            self.writer.take_if(|_| can_write),
        ]
    }

    /// Returns the error of a connection that the thread has closed.
    fn error(&self) -> io::Error {
        match self.failure {
            None | Some(ErrorKind::ConnectionAborted) => closed(),
            Some(kind) => kind.into(),
        }
    }

    /// Moves received bytes to `buffer`. Returns their number, 0 at the end, or `None` if there are
    /// none yet.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(stream) = &mut self.stream else {
            return Err(self.error());
        };
        match stream.socket().recv_slice(buffer) {
            Ok(0) => Ok(None),
            Ok(count) => Ok(Some(count)),
            Err(RecvError::Finished) => Ok(Some(0)),
            Err(RecvError::InvalidState) => Err(ErrorKind::ConnectionReset.into()),
        }
    }

    /// Moves bytes to the connection's buffer. Returns their number, or `None` if there is no
    /// room.
    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let Some(stream) = &mut self.stream else {
            return Err(self.error());
        };
        if self.is_shut_down {
            return Err(ErrorKind::BrokenPipe.into());
        }
        match stream.socket().send_slice(bytes) {
            Ok(0) => Ok(None),
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(ErrorKind::BrokenPipe.into()),
        }
    }
}

impl TcpStream {
    pub(crate) fn new(shared: Arc<Connection>, signals: Signals) -> Self {
        Self { shared, signals }
    }

    /// Returns this side's address in the tunnel, and its port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    /// Returns the other side's address and port.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.shared.remote
    }

    /// Sets TCP keepalive of this connection; `None` turns it off. It is off unless
    /// [`Config::keepalive`](crate::Config::keepalive) has set it for the tunnel. If no probe is answered,
    /// the connection ends with [`ErrorKind::TimedOut`].
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) {
        let mut state = self.shared.lock();
        if let Some(stream) = &mut state.stream {
            stream.set_keepalive(keepalive);
        }
        drop(state);
        self.notify();
    }

    /// Has the thread look at the connection.
    fn notify(&self) {
        if !self.shared.is_due.swap(true, Ordering::AcqRel) {
            self.signals.send(Signal::Serve(self.shared.number));
        }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.shared.lock();
        let Some(count) = state.read(buffer.initialize_unfilled())? else {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        };
        drop(state);
        buffer.advance(count);
        if count > 0 {
            // The window has opened.
            self.notify();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.shared.lock();
        let Some(count) = state.write(bytes)? else {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        };
        drop(state);
        self.notify();
        Poll::Ready(Ok(count))
    }

    /// Returns at once: written bytes are sent without a request.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the data of this side. Returns at once, before the other side has it.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        if state.stream.is_none() {
            return Poll::Ready(Err(state.error()));
        }
        state.is_shut_down = true;
        if let Some(stream) = &mut state.stream {
            stream.socket().close();
        }
        drop(state);
        self.notify();
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.shared.lock().is_dropped = true;
        self.notify();
    }
}

//! Listeners for connections from the tunnel.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::connection::TcpStream;
use crate::error::closed;
use crate::signals::{Signal, Signals};

/// A listener for connections from the tunnel. Dropping it resets connections that were not
/// accepted.
pub struct TcpListener {
    backlog: Arc<Backlog>,
    signals: Signals,
}

/// Connections of a listener that wait for a task.
pub(crate) struct Backlog {
    port: u16,
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    streams: VecDeque<TcpStream>,
    is_closed: bool,
}

impl TcpListener {
    pub(crate) fn new(port: u16, signals: Signals) -> (Self, Arc<Backlog>) {
        let backlog = Arc::new(Backlog {
            port,
            waiting: Mutex::default(),
            changed: Notify::new(),
        });
        let listener = Self {
            backlog: Arc::clone(&backlog),
            signals,
        };
        (listener, backlog)
    }

    /// Waits for a connection. Returns it and the other side's address. Several tasks may wait.
    /// Dropping the future loses no connection.
    ///
    /// # Errors
    ///
    /// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted) if the tunnel is closed.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            // Registered before the check, so no change is missed.
            let changed = self.backlog.changed.notified();
            {
                let mut waiting = self.backlog.lock();
                if let Some(stream) = waiting.streams.pop_front() {
                    let remote = stream.peer_addr();
                    return Ok((stream, remote));
                }
                if waiting.is_closed {
                    return Err(closed());
                }
            }
            changed.await;
        }
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.backlog.port
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.signals.send(Signal::CloseListener(self.backlog.port));
    }
}

impl Backlog {
    /// Returns the number of connections that wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().streams.len()
    }

    pub(crate) fn push(&self, stream: TcpStream) {
        self.lock().streams.push_back(stream);
        self.changed.notify_one();
    }

    /// Ends all waits, and closes the connections that were not accepted.
    pub(crate) fn close(&self) {
        let streams = {
            let mut waiting = self.lock();
            waiting.is_closed = true;
            std::mem::take(&mut waiting.streams)
        };
        self.changed.notify_waiters();
        drop(streams);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

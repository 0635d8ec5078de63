//! UDP sockets in the tunnel.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taupe_stack::net::max_payload;
use taupe_stack::settings::Sources;
use tokio::sync::Notify;

use crate::error::{closed, failed};
use crate::signals::{Signal, Signals};

/// Bytes that received datagrams of a socket may take.
const RECEIVED_BYTES: usize = 256 << 10;

/// Bytes that datagrams of a socket may take that were not sent yet.
const SENT_BYTES: usize = 64 << 10;

/// Bytes for which a datagram counts in addition to its content.
const OVERHEAD: usize = 64;

/// A UDP socket in the tunnel. Several tasks may use it at once.
pub struct UdpSocket {
    number: usize,
    port: u16,
    mtu: usize,
    sources: Sources,
    queues: Arc<Queues>,
    signals: Signals,
}

/// Datagrams of a socket that wait for a task or for the thread.
pub(crate) struct Queues {
    state: Mutex<State>,
    received: Notify,
    has_room: Notify,
    /// True if the thread knows that there are datagrams to send.
    is_due: AtomicBool,
}

#[derive(Default)]
struct State {
    received: Queue,
    to_send: Queue,
    /// Received datagrams for which there was no room.
    dropped: u64,
    is_closed: bool,
}

/// Datagrams with the address of the other side.
#[derive(Default)]
struct Queue {
    datagrams: VecDeque<(SocketAddr, Vec<u8>)>,
    bytes: usize,
}

impl Queue {
    /// Appends a datagram. Returns false if there is no room.
    fn push(&mut self, limit: usize, remote: SocketAddr, payload: &[u8]) -> bool {
        let bytes = self.bytes + payload.len() + OVERHEAD;
        let has_room = bytes <= limit;
        if has_room {
            self.bytes = bytes;
            self.datagrams.push_back((remote, payload.to_vec()));
        }
        has_room
    }

    fn pop(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let (remote, payload) = self.datagrams.pop_front()?;
        self.bytes -= payload.len() + OVERHEAD;
        Some((remote, payload))
    }
}

impl UdpSocket {
    pub(crate) fn new(
        number: usize,
        port: u16,
        mtu: usize,
        sources: Sources,
        signals: Signals,
    ) -> (Self, Arc<Queues>) {
        let queues = Arc::new(Queues {
            state: Mutex::default(),
            received: Notify::new(),
            has_room: Notify::new(),
            is_due: AtomicBool::new(false),
        });
        let socket = Self {
            number,
            port,
            mtu,
            sources,
            queues: Arc::clone(&queues),
            signals,
        };
        (socket, queues)
    }

    /// Sends a datagram. Waits while 64 KiB wait to be sent. Returns its length.
    ///
    /// Datagrams are not fragmented: the longest has the tunnel's MTU less 28 bytes over IPv4, and
    /// less 48 over IPv6. As with every UDP socket, success does not mean that it arrives.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the datagram is too long or the port is 0,
    /// [`ErrorKind::NetworkUnreachable`] without a route, [`ErrorKind::ConnectionAborted`] if the
    /// tunnel is closed.
    pub async fn send_to(&self, payload: &[u8], remote: SocketAddr) -> io::Result<usize> {
        self.sources.source_for(remote.ip()).map_err(failed)?;
        let most = max_payload(self.mtu, remote.ip());
        if payload.len() > most || remote.port() == 0 {
            let reason = format!("a datagram has at most {most} bytes in this tunnel, and a port");
            return Err(io::Error::new(ErrorKind::InvalidInput, reason));
        }
        loop {
            // Registered before the check, so no change is missed.
            let has_room = self.queues.has_room.notified();
            {
                let mut state = self.queues.lock();
                if state.is_closed {
                    return Err(closed());
                }
                if state.to_send.push(SENT_BYTES, remote, payload) {
                    break;
                }
            }
            has_room.await;
        }
        if !self.queues.is_due.swap(true, Ordering::AcqRel) {
            self.signals.send(Signal::SendDatagrams(self.number));
        }
        Ok(payload.len())
    }

    /// Waits for a datagram. Returns its length and its sender. Bytes that `buffer` has no room for
    /// are lost. Dropping the future loses no datagram.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ConnectionAborted`] if the tunnel is closed.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        loop {
            // Registered before the check, so no change is missed.
            let received = self.queues.received.notified();
            {
                let mut state = self.queues.lock();
                if let Some((remote, payload)) = state.received.pop() {
                    let length = payload.len().min(buffer.len());
                    buffer[..length].copy_from_slice(&payload[..length]);
                    return Ok((length, remote));
                }
                if state.is_closed {
                    return Err(closed());
                }
            }
            received.await;
        }
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of received datagrams for which there was no room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queues.lock().dropped
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.signals.send(Signal::CloseUdp(self.number));
    }
}

impl Queues {
    /// Queues a datagram from the tunnel, or drops it if there is no room.
    pub(crate) fn deliver(&self, from: SocketAddr, payload: &[u8]) {
        let mut state = self.lock();
        if state.received.push(RECEIVED_BYTES, from, payload) {
            drop(state);
            self.received.notify_one();
        } else {
            state.dropped += 1;
        }
    }

    /// Passes the datagrams to `send` until it returns false. Returns true if all were sent.
    pub(crate) fn drain(&self, mut send: impl FnMut(SocketAddr, &[u8]) -> bool) -> bool {
        self.is_due.store(false, Ordering::Release);
        loop {
            let Some((remote, payload)) = self.lock().to_send.pop() else {
                return true;
            };
            if !send(remote, &payload) {
                let mut state = self.lock();
                state.to_send.bytes += payload.len() + OVERHEAD;
                state.to_send.datagrams.push_front((remote, payload));
                self.is_due.store(true, Ordering::Release);
                return false;
            }
            self.has_room.notify_waiters();
        }
    }

    /// Ends all waits.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.received.notify_waiters();
        self.has_room.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{OVERHEAD, Queue};
    use std::net::SocketAddr;

    #[test]
    fn a_queue_is_bounded_by_bytes_and_keeps_the_order() {
        let remote = SocketAddr::from(([10, 0, 0, 1], 7));
        let mut queue = Queue::default();
        let limit = 3 * (10 + OVERHEAD);
        for number in 0..5 {
            assert_eq!(queue.push(limit, remote, &[number; 10]), number < 3);
        }
        assert_eq!(queue.pop(), Some((remote, vec![0; 10])));
        assert!(queue.push(limit, remote, &[9; 10]));
        let rest = std::iter::from_fn(|| queue.pop()).map(|(_, payload)| payload[0]);
        assert_eq!(rest.collect::<Vec<_>>(), [1, 2, 9]);
        assert_eq!(queue.bytes, 0);
        // Datagrams without content take memory too.
        let empty = (0..limit)
            .take_while(|_| queue.push(limit, remote, b""))
            .count();
        assert_eq!(empty, limit / OVERHEAD);
    }
}

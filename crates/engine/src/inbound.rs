//! The way in, in packet order, from each socket, whichever thread reads it:
//!
//! 1. *receive* batches from a UDP socket: all that are there, with one call,
//! 2. *open* each: find the session, decrypt in place, check replay and source
//!    ([`taupe_protocol::DataPath::receive`]); handshake messages go to the
//!    control loop,
//! 3. carry *ECN* marks inside (RFC 6040),
//! 4. hand what is left to the *tap*, if there is one ([`taupe_packet::tap::Tap`]),
//! 5. *merge* consecutive segments into super-packets,
//! 6. *write* them to the TUN, straight from the receive buffer.

use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use taupe_os_linux::tun::WriteError;
use taupe_os_linux::udp::{
    MAX_RECEIVES, RECEIVE_BUFFER_LEN, RECEIVE_LEN, Receive, Received, Socket,
};
use taupe_packet::ecn;
use taupe_packet::merge::{Merger, TunWrite};
use taupe_protocol::time::Instant;
use taupe_protocol::{DropReason, ReceivedBatch};
use tracing::{debug, warn};

use crate::schedule::PacketPath;
use crate::schedule::load::Turn;
use crate::shared::{BUSY, Command, Shared};
use crate::sockets::endpoint;
use taupe_packet::tap::TapIn;
use taupe_runtime::clock;

/// A receive that brings more than this is one of many: the next looks for more
/// than one batch. That is a little dearer, which a lone packet should not pay.
const BULK: usize = 4 << 10;

/// Bytes that one receive is to bring at most, as far as can be foreseen. What
/// does not stay in the cache until it is opened costs more than a call.
const AT_ONCE: usize = 512 << 10;

/// How many batches of the size of the last ones that is.
fn batches_for(bytes: usize, count: usize) -> usize {
    (AT_ONCE * count / bytes.max(1)).clamp(AT_ONCE / RECEIVE_LEN + 1, MAX_RECEIVES)
}

/// Carries packets from one socket to the TUN.
pub(crate) struct InboundPath {
    shared: Arc<Shared>,
    socket: Arc<Socket>,
    buffer: Vec<u8>,
    /// Bytes of the buffer that the next receive may fill.
    room: usize,
    /// The time at which the last turn ended.
    ended: Instant,
    incoming: Incoming,
}

/// What is on its way.
struct Incoming {
    sorted: ReceivedBatch,
    /// Where in the receive buffer the packets to deliver are.
    inner: Vec<Range<usize>>,
    tap: Option<Box<dyn TapIn>>,
    merger: Merger,
}

impl InboundPath {
    pub(crate) fn new(shared: Arc<Shared>, socket: Arc<Socket>) -> Self {
        let tap = shared.tap.as_ref().map(|tap| tap.incoming());
        Self {
            shared,
            socket,
            buffer: vec![0; RECEIVE_BUFFER_LEN],
            room: RECEIVE_LEN,
            ended: Instant::default(),
            incoming: Incoming {
                sorted: ReceivedBatch::default(),
                inner: Vec::new(),
                tap,
                merger: Merger::new(),
            },
        }
    }
}

impl PacketPath for InboundPath {
    fn source(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn turn(&mut self, waits: bool) -> ControlFlow<(), Turn> {
        self.carry(waits).map_continue(|(turn, _)| turn)
    }
}

impl InboundPath {
    /// Delivers all that is there, and says how many datagrams that was.
    pub(crate) fn carry(&mut self, waits: bool) -> ControlFlow<(), (Turn, usize)> {
        let Self {
            shared,
            socket,
            buffer,
            room,
            ended,
            incoming,
        } = self;
        let space = &mut buffer[..*room];
        let received = if waits {
            socket.receive(space).map(Some)
        } else {
            socket.receive_announced(space)
        };
        let came = clock::boot();
        let (mut bytes, mut count) = (0, 0);
        match received {
            Ok(Some(Receive::Datagrams(batches))) => {
                for received in &batches {
                    incoming.open(shared, came, received, buffer);
                    bytes += received.len;
                    // One without content is one too.
                    count += received.len.div_ceil(received.segment.max(1)).max(1);
                }
                incoming.deliver(shared, came, buffer);
                *room = if came.since(*ended) < BUSY || bytes > BULK {
                    RECEIVE_LEN * batches_for(bytes, batches.len())
                } else {
                    RECEIVE_LEN
                };
            }
            Ok(None) => {}
            Ok(Some(Receive::Stopped)) => return ControlFlow::Break(()),
            Err(error) => {
                warn!(%error, "receiving from the network failed");
                shared.send(Command::SocketFailed(Arc::downgrade(socket)));
                return ControlFlow::Break(());
            }
        }
        *ended = clock::boot();
        let turn = Turn {
            came,
            ended: *ended,
            bytes,
        };
        ControlFlow::Continue((turn, count))
    }
}

impl Incoming {
    /// Opens one batch of what has been received.
    fn open(&mut self, shared: &Shared, now: Instant, received: &Received, buffer: &mut [u8]) {
        let Self { sorted, inner, .. } = self;
        let end = received.start + received.len;
        let Some(batch) = buffer.get_mut(received.start..end) else {
            return;
        };
        let from = endpoint(received.from, received.local);
        shared
            .path
            .receive(now, from, batch, received.segment, sorted);
        if !sorted.handshakes.is_empty() {
            let messages = sorted.handshakes.iter().map(|range| &batch[range.clone()]);
            let pushed = shared.handshakes.push(from, messages);
            let counters = shared.path.counters();
            counters.add(DropReason::BacklogFull, pushed.dropped);
            if pushed.wake {
                shared.waker.wake();
            }
        }
        let delivered = sorted.inner.iter().filter(|range| {
            let packet = &mut batch[range.start..range.end];
            ecn::decapsulate(received.ecn, packet) == ecn::Verdict::Deliver
        });
        let start = received.start;
        inner.extend(delivered.map(|range| start + range.start..start + range.end));
    }

    /// Merges what has been opened, and writes it to the TUN.
    fn deliver(&mut self, shared: &Shared, now: Instant, buffer: &mut [u8]) {
        let Self {
            inner, tap, merger, ..
        } = self;
        // Whether to go on. Of those who say that the TUN is gone, control heeds the first.
        let write = |write: &TunWrite<'_>| match shared.tun.write(write) {
            Ok(()) => ControlFlow::Continue(()),
            Err(WriteError::Down) => {
                debug!("the interface is down: packet dropped");
                ControlFlow::Continue(())
            }
            Err(WriteError::Deleted) => {
                shared.send(Command::TunDeleted);
                ControlFlow::Break(())
            }
            Err(error) => {
                warn!(%error, "packet dropped");
                ControlFlow::Continue(())
            }
        };
        if let Some(tap) = tap {
            tap.take(now.0, buffer, inner, &mut |packet| {
                // The others will find out too.
                let _ = write(&TunWrite::single(packet));
            });
        }
        let writes = merger.merge(buffer, inner, shared.tun.coalesce());
        inner.clear();
        for merged in writes {
            if write(&merged).is_break() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_batches_are_the_more_are_received_at_once() {
        assert_eq!(batches_for(8 * 65_000, 8), 8, "full ones");
        assert_eq!(batches_for(65_000 + 148, 2), 16, "every other");
        assert_eq!(batches_for(8 * 148, 8), MAX_RECEIVES, "single datagrams");
        assert_eq!(batches_for(0, 1), MAX_RECEIVES, "empty ones");
    }
}

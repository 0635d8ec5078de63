//! The inbound path, from a UDP socket to the TUN, in packet order:
//!
//! 1. *Receive* all batches that wait in the socket, with one system call. A batch is up to 64
//!    datagrams of one sender and one length, which the kernel has merged (`UDP_GRO`).
//! 2. *Open* each batch: classify its messages, find the session by receiver index, decrypt in
//!    place, check replay and the inner source ([`taupe_protocol::DataPath::receive`]).
//!    Handshake messages go to the control loop.
//! 3. Copy *ECN* marks from the outer to the inner header (RFC 6040).
//! 4. Hand the packets to the *tap*, if there is one ([`taupe_packet::tap::Tap`]).
//! 5. *Merge* consecutive segments of a flow into super-packets, without copying payload.
//! 6. *Write* each super-packet to the TUN, straight from the receive buffer.
//!
//! Each socket has a path of its own, which one thread at a time drives ([`crate::schedule`]).

use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use taupe_os_linux::tun::WriteError;
use taupe_os_linux::udp::{MAX_RECEIVES, RECEIVE_LEN, Receive, Received, Socket};
use taupe_packet::ecn;
use taupe_packet::merge::{Merger, TunWrite};
use taupe_protocol::time::Instant;
use taupe_protocol::{DropReason, ReceivedBatch};
use tracing::{debug, warn};

use crate::lane::Lane;
use crate::schedule::PacketPath;
use crate::schedule::load::Turn;
use crate::shared::{BUSY, Command};
use crate::sockets::endpoint;
use taupe_packet::tap::TapIn;
use taupe_runtime::clock;

/// If a receive brings more bytes than this, the next one asks for several batches. That call
/// costs a little more (`recvmmsg`), which single packets should not pay.
const BULK: usize = 4 << 10;

/// Bytes that one receive should bring, at most. Data that leaves the cache before it is opened
/// costs more than another call.
const AT_ONCE: usize = 512 << 10;

/// Returns the number of batches that hold [`AT_ONCE`] bytes, if they are as long as the last
/// `count` batches, which held `bytes`.
fn batches_for(bytes: usize, count: usize) -> usize {
    (AT_ONCE * count / bytes.max(1)).clamp(AT_ONCE / RECEIVE_LEN + 1, MAX_RECEIVES)
}

/// Carries packets from one socket to the TUN.
pub(crate) struct InboundPath {
    lane: Arc<Lane>,
    socket: Arc<Socket>,
    /// Grows to the largest receive so far, because most lanes never need more than one batch.
    buffer: Vec<u8>,
    /// Bytes of the buffer that the next receive may fill.
    room: usize,
    /// The time at which the last turn ended.
    ended: Instant,
    incoming: Incoming,
}

/// State of the steps after the receive.
struct Incoming {
    sorted: ReceivedBatch,
    /// Ranges of the receive buffer that hold packets to deliver.
    inner: Vec<Range<usize>>,
    tap: Option<Box<dyn TapIn>>,
    merger: Merger,
}

impl InboundPath {
    /// Returns the path of a socket, whose packets go to the TUN queue of a lane.
    pub(crate) fn new(lane: Arc<Lane>, socket: Arc<Socket>) -> Self {
        let tap = lane.shared.tap.as_ref().map(|tap| tap.incoming());
        Self {
            lane,
            socket,
            buffer: vec![0; RECEIVE_LEN],
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
    /// Receives all batches that wait and delivers their packets. Returns the turn and the number
    /// of datagrams.
    pub(crate) fn carry(&mut self, waits: bool) -> ControlFlow<(), (Turn, usize)> {
        let Self {
            lane,
            socket,
            buffer,
            room,
            ended,
            incoming,
        } = self;
        if buffer.len() < *room {
            buffer.resize(*room, 0);
        }
        let space = &mut buffer[..*room];
        let received = if waits {
            socket.receive(space).map(Some)
        } else {
            socket.receive_ready(space)
        };
        let read_at = clock::boot();
        let (mut bytes, mut count) = (0, 0);
        match received {
            Ok(Some(Receive::Datagrams(batches))) => {
                for received in &batches {
                    incoming.open(lane, read_at, received, buffer);
                    bytes += received.len;
                    // An empty datagram counts too.
                    count += received.len.div_ceil(received.segment.max(1)).max(1);
                }
                incoming.deliver(lane, read_at, buffer);
                *room = if read_at.since(*ended) < BUSY || bytes > BULK {
                    RECEIVE_LEN * batches_for(bytes, batches.len())
                } else {
                    RECEIVE_LEN
                };
            }
            Ok(None) => {}
            Ok(Some(Receive::Stopped)) => return ControlFlow::Break(()),
            Err(error) => {
                warn!(%error, "receiving from the network failed");
                lane.shared
                    .send(Command::SocketFailed(Arc::downgrade(socket)));
                return ControlFlow::Break(());
            }
        }
        *ended = clock::boot();
        let turn = Turn {
            read_at,
            ended: *ended,
            bytes,
        };
        ControlFlow::Continue((turn, count))
    }
}

impl Incoming {
    /// Steps 2 and 3: opens one batch, and notes the packets to deliver.
    fn open(&mut self, lane: &Lane, now: Instant, received: &Received, buffer: &mut [u8]) {
        let Self { sorted, inner, .. } = self;
        let shared = &lane.shared;
        let end = received.start + received.len;
        let Some(batch) = buffer.get_mut(received.start..end) else {
            return;
        };
        let from = endpoint(received.from, received.local);
        shared
            .path
            .receive_on(lane.id, now, from, batch, received.segment, sorted);
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

    /// Steps 4 to 6: hands the packets to the tap, merges them and writes them to the TUN.
    fn deliver(&mut self, lane: &Lane, now: Instant, buffer: &mut [u8]) {
        let Self {
            inner, tap, merger, ..
        } = self;
        // Breaks if the TUN has been deleted. Several threads may report that; the control loop
        // acts on the first report.
        let write = |write: &TunWrite<'_>| match lane.tun.write(write) {
            Ok(()) => ControlFlow::Continue(()),
            Err(WriteError::Down) => {
                debug!("the interface is down: packet dropped");
                ControlFlow::Continue(())
            }
            Err(WriteError::Deleted) => {
                lane.shared.send(Command::TunDeleted);
                ControlFlow::Break(())
            }
            Err(error) => {
                warn!(%error, "packet dropped");
                ControlFlow::Continue(())
            }
        };
        if let Some(tap) = tap {
            tap.handle(now.0, buffer, inner, &mut |packet| {
                // If the TUN is gone, the writes below fail too.
                let _ = write(&TunWrite::single(packet));
            });
        }
        let writes = merger.merge(buffer, inner, lane.tun.coalesce());
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
    fn smaller_batches_are_received_more_at_a_time() {
        assert_eq!(batches_for(8 * 65_000, 8), 8, "full ones");
        assert_eq!(batches_for(65_000 + 148, 2), 16, "every other");
        assert_eq!(batches_for(8 * 148, 8), MAX_RECEIVES, "single datagrams");
        assert_eq!(batches_for(0, 1), MAX_RECEIVES, "empty ones");
    }
}

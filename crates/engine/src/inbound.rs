//! The way in, in packet order:
//!
//! 1. *receive* batches from a UDP socket: all that are there, with one call,
//! 2. *open* each: find the session, decrypt in place, check replay and source
//!    ([`taupe_protocol::DataPath::receive`]); handshake messages go to the
//!    control loop,
//! 3. carry *ECN* marks inside (RFC 6040),
//! 4. *merge* consecutive segments into super-packets,
//! 5. *write* them to the TUN, straight from the receive buffer.

use std::ops::Range;

use taupe_net::ecn;
use taupe_net::merge::Merger;
use taupe_net::tun::WriteError;
use taupe_net::udp::{MAX_RECEIVES, RECEIVE_BUFFER_LEN, RECEIVE_LEN, Receive, Received, Socket};
use taupe_protocol::time::Instant;
use taupe_protocol::{Cause, Sorted};
use tracing::{debug, warn};

use crate::bulk::Bulk;
use crate::shared::{BUSY, Command, Shared, boot_now};
use crate::sockets::endpoint;

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

/// Carries packets from one socket to the TUN until the socket is shut down.
pub(crate) fn run(shared: &Shared, socket: &Socket) {
    let mut inbound = InboundThread {
        shared,
        sorted: Sorted::default(),
        inner: Vec::new(),
        merger: Merger::new(),
        bulk: Bulk::default(),
    };
    let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
    let mut room = RECEIVE_LEN;
    loop {
        let began = boot_now();
        match socket.receive(&mut buffer[..room]) {
            Ok(Receive::Datagrams(batches)) => {
                let now = boot_now();
                for received in &batches {
                    inbound.open(now, received, &mut buffer);
                }
                inbound.deliver(&mut buffer);
                let bytes: usize = batches.iter().map(|received| received.len).sum();
                room = if now.since(began) < BUSY || bytes > BULK {
                    RECEIVE_LEN * batches_for(bytes, batches.len())
                } else {
                    RECEIVE_LEN
                };
            }
            Ok(Receive::Stopped) => return,
            Err(error) => {
                warn!(%error, "receiving from the network failed");
                return shared.send(Command::SocketFailed);
            }
        }
    }
}

struct InboundThread<'a> {
    shared: &'a Shared,
    sorted: Sorted,
    /// Where in the receive buffer the packets to deliver are.
    inner: Vec<Range<usize>>,
    merger: Merger,
    bulk: Bulk,
}

impl InboundThread<'_> {
    /// Opens one batch of what has been received.
    fn open(&mut self, now: Instant, received: &Received, buffer: &mut [u8]) {
        let Self {
            shared,
            sorted,
            bulk,
            ..
        } = self;
        let end = received.start + received.len;
        let Some(batch) = buffer.get_mut(received.start..end) else {
            return;
        };
        let from = endpoint(received.from, received.local);
        bulk.carried(now, batch.len());
        shared
            .path
            .receive(now, from, batch, received.segment, sorted);
        if !sorted.handshakes.is_empty() {
            let messages = sorted.handshakes.iter().map(|range| &batch[range.clone()]);
            let pushed = shared.handshakes.push(from, messages);
            let counters = shared.path.counters();
            counters.add(Cause::BacklogFull, pushed.dropped);
            if pushed.wake {
                shared.waker.wake();
            }
        }
        let delivered = sorted.inner.iter().filter(|range| {
            let packet = &mut batch[range.start..range.end];
            ecn::decapsulate(received.ecn, packet) == ecn::Verdict::Deliver
        });
        let start = received.start;
        self.inner
            .extend(delivered.map(|range| start + range.start..start + range.end));
    }

    /// Merges what has been opened, and writes it to the TUN.
    fn deliver(&mut self, buffer: &mut [u8]) {
        let Self {
            shared,
            inner,
            merger,
            ..
        } = self;
        let writes = merger.merge(buffer, inner, shared.tun.coalesce());
        inner.clear();
        for write in writes {
            match shared.tun.write(&write) {
                Ok(()) => {}
                Err(WriteError::Down) => {
                    debug!("the interface is down: packet dropped");
                }
                Err(WriteError::Deleted) => return shared.send(Command::TunDeleted),
                Err(error) => warn!(%error, "packet dropped"),
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

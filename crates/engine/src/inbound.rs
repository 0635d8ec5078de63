//! The way in, in packet order:
//!
//! 1. *receive* a batch from a UDP socket,
//! 2. *open* it: find the session, decrypt in place, check replay and source
//!    ([`taupe_protocol::DataPath::receive`]); handshake messages go to the
//!    control loop,
//! 3. carry *ECN* marks inside (RFC 6040),
//! 4. *merge* consecutive segments into super-packets,
//! 5. *write* them to the TUN, straight from the receive buffer.

use taupe_net::ecn;
use taupe_net::merge::Merger;
use taupe_net::tun::WriteError;
use taupe_net::udp::{RECEIVE_BUFFER_LEN, Receive, Received, Socket};
use taupe_protocol::{Cause, Sorted};
use tracing::{debug, warn};

use crate::shared::{Command, Shared, boot_now};
use crate::sockets::endpoint;

/// Carries packets from one socket to the TUN until the socket is shut down.
pub(crate) fn run(shared: &Shared, socket: &Socket) {
    let mut inbound = InboundThread {
        shared,
        sorted: Sorted::default(),
        merger: Merger::new(),
    };
    let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
    loop {
        match socket.receive(&mut buffer) {
            Ok(Receive::Datagrams(received)) => {
                if let Some(batch) = buffer.get_mut(..received.len) {
                    inbound.carry(&received, batch);
                }
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
    merger: Merger,
}

impl InboundThread<'_> {
    fn carry(&mut self, received: &Received, batch: &mut [u8]) {
        let Self {
            shared,
            sorted,
            merger,
        } = self;
        let from = endpoint(received.from, received.local);
        shared
            .path
            .receive(boot_now(), from, batch, received.segment, sorted);
        if !sorted.handshakes.is_empty() {
            for range in &sorted.handshakes {
                if !shared.handshakes.push(from, &batch[range.clone()]) {
                    shared.path.counters().add(Cause::BacklogFull, 1);
                }
            }
            shared.waker.wake();
        }
        sorted.inner.retain(|range| {
            let verdict = ecn::decapsulate(received.ecn, &mut batch[range.clone()]);
            verdict == ecn::Verdict::Deliver
        });
        for write in merger.merge(batch, &sorted.inner, shared.tun.coalesce()) {
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

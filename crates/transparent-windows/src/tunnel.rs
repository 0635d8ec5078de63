//! The tunnel: the protocol device, with packets to be sealed and datagrams to be opened.
//!
//! Other users of the device use the driver of `taupe-runtime`. It reads clocks and saved state,
//! which this crate must not do: here the time is an argument, and the caller handles the device's
//! outputs.

use std::{net::SocketAddr, sync::Arc};

use taupe_packet::ecn;
use taupe_protocol::{
    DataPath, Device, DropReason, Endpoint, HandshakeQueue, LaneId, Outbound, Output, Peer,
    ReceivedBatch, Staged, TakenHandshakes,
    crypto::TAG_LEN,
    inner,
    limits::UNDER_LOAD_BACKLOG,
    message::{DATA_HEADER_LEN, Kind, classify},
    padded_len,
    time::{Instant, Now},
};

use super::datagram::HEADROOM;

/// Offset in a buffer of a packet that is to be sealed or has been opened.
pub(super) const PACKET: usize = HEADROOM + DATA_HEADER_LEN;

/// Number of simultaneous handshake messages that counts as a flood.
const FLOOD: usize = 64;

/// A protocol device and its queues.
pub(super) struct Tunnel {
    pub(super) device: Device,
    path: Arc<DataPath>,
    sorted: ReceivedBatch,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Datagram>,
    /// Sealed messages with destination and traffic class.
    pub(super) sealed: Vec<(SocketAddr, u8, Vec<u8>)>,
}

/// A packet to be sealed in place.
struct Outgoing {
    peer: Arc<Peer>,
    ecn: u8,
    /// Room for headers, the packet with padding, and room for the tag.
    buffer: Vec<u8>,
}

pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    pub(super) tos: u8,
    /// [`HEADROOM`] bytes, then the message.
    pub(super) buffer: Vec<u8>,
}

/// The error if no peer's allowed IPs contain the packet's destination.
pub(super) struct NoPeer;

impl Tunnel {
    pub(super) fn new(device: Device) -> Self {
        Self {
            path: Arc::clone(device.data_path()),
            device,
            sorted: ReceivedBatch::default(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            sealed: Vec::new(),
        }
    }

    /// Queues a packet to be sealed. In `buffer` it begins after [`PACKET`] bytes. `mtu` limits its
    /// padding.
    pub(super) fn send(&mut self, mut buffer: Vec<u8>, mtu: usize) -> Result<(), NoPeer> {
        let packet = buffer.get(PACKET..).unwrap_or_default();
        let view = inner::parse(packet).ok_or(NoPeer)?;
        let ecn = ecn::encapsulate(traffic_class(packet));
        let peer = self.path.routes().lookup(view.destination).cloned();
        let peer = peer.ok_or(NoPeer)?;
        buffer.truncate(PACKET + view.length);
        buffer.resize(PACKET + padded_len(view.length, mtu) + TAG_LEN, 0);
        self.outgoing.push(Outgoing { peer, ecn, buffer });
        Ok(())
    }

    pub(super) fn receive(&mut self, datagram: Datagram) {
        self.incoming.push(datagram);
    }

    /// Opens the received datagrams in their order. Passes each packet, after [`PACKET`] bytes and
    /// with congestion marks applied, to `deliver`. Then handles handshake messages, the newest
    /// first.
    pub(super) fn open(&mut self, now: Now, mut deliver: impl FnMut(Vec<u8>)) {
        /// Stride between datagrams in the positions of a batch; greater than any datagram.
        const STRIDE: usize = 1 << 17;
        let mut incoming = std::mem::take(&mut self.incoming);
        let is_other = |datagram: &&Datagram| {
            let message = datagram.buffer.get(HEADROOM..).unwrap_or_default();
            !matches!(classify(message), Ok(Kind::Data))
        };
        let others = incoming.iter().filter(is_other).count();
        // A read returns few datagrams, so the threshold for a flood is lower than elsewhere.
        let backlog = match others < FLOOD {
            true => 0,
            false => UNDER_LOAD_BACKLOG,
        };
        let mut handshakes = HandshakeQueue::default();
        let mut rest = &mut incoming[..];
        while let Some(first) = rest.first() {
            let from = first.from;
            let count = rest.iter().take_while(|next| next.from == from).count();
            let (run, later) = rest.split_at_mut(count);
            rest = later;
            let messages = run.iter_mut().enumerate().filter_map(|(index, datagram)| {
                let message = datagram.buffer.get_mut(HEADROOM..)?;
                Some((index * STRIDE, message))
            });
            let endpoint = Endpoint::from(from);
            self.path
                .receive_each(now.boot, endpoint, messages, &mut self.sorted);
            for place in &self.sorted.handshakes {
                let message = &run[place.start / STRIDE].buffer[HEADROOM..];
                let dropped = handshakes.push(endpoint, message);
                self.path.counters().add(DropReason::BacklogFull, dropped);
            }
            for place in &self.sorted.inner {
                let datagram = &mut run[place.start / STRIDE];
                let mut buffer = std::mem::take(&mut datagram.buffer);
                buffer.truncate(HEADROOM + place.end % STRIDE);
                let packet = buffer.get_mut(PACKET..).unwrap_or_default();
                if ecn::decapsulate(datagram.tos, packet) == ecn::Verdict::Deliver {
                    deliver(buffer);
                }
            }
        }
        incoming.clear();
        self.incoming = incoming;
        let mut messages = TakenHandshakes::default();
        handshakes.take(usize::MAX, &mut messages);
        for message in messages.drain() {
            let from = message.from;
            let _ = self
                .device
                .handle_message(now, from, message.bytes(), backlog);
        }
    }

    /// Seals queued packets for which there are sessions. The others wait in the protocol's queue.
    pub(super) fn seal(&mut self, now: Instant) {
        let mut outgoing = std::mem::take(&mut self.outgoing).into_iter().peekable();
        while let Some(first) = outgoing.next() {
            let peer = Arc::clone(&first.peer);
            let mut run = vec![first];
            while let Some(next) = outgoing.next_if(|next| Arc::ptr_eq(&next.peer, &peer)) {
                run.push(next);
            }
            let bytes = run
                .iter()
                .map(|packet| (packet.buffer.len() - HEADROOM) as u64);
            match self.path.reserve(now, &peer, run.len() as u64, bytes.sum()) {
                Outbound::Send(mut reservation) => {
                    let to = reservation.endpoint().remote;
                    let messages = run.iter_mut();
                    reservation.seal_each(messages.map(|packet| &mut packet.buffer[HEADROOM..]));
                    let sealed = run.into_iter();
                    self.sealed
                        .extend(sealed.map(|packet| (to, packet.ecn, packet.buffer)));
                }
                Outbound::Stage => {
                    let staged = run.into_iter().map(|packet| {
                        let end = packet.buffer.len() - TAG_LEN;
                        Staged {
                            packet: packet.buffer[PACKET..end].to_vec(),
                            ecn: packet.ecn,
                            lane: LaneId::FIRST,
                        }
                    });
                    self.path.stage(now, &peer, staged);
                }
                // Dropped: the peer has no endpoint.
                Outbound::NoEndpoint => {}
            }
        }
    }

    /// Lets the protocol do its pending work, and returns its next output.
    pub(super) fn poll(&mut self, now: Now) -> Option<Output> {
        self.device.handle_pending_work(now);
        self.device.handle_deadline(now);
        self.device.poll_output()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.device.next_deadline().map(|(at, _)| at)
    }
}

/// Returns the traffic class of a packet whose header has been parsed.
fn traffic_class(packet: &[u8]) -> u8 {
    match packet {
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        [_, second, ..] => *second,
        _ => 0,
    }
}

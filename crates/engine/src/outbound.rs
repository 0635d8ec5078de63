//! The way out, in packet order:
//!
//! 1. *read* a super-packet from the TUN,
//! 2. *route* it by its destination to a peer,
//! 3. *reserve* counters for as many segments as fit one send,
//! 4. *split* them straight into the send buffer,
//! 5. *seal* them in place,
//! 6. *send* them with one system call.
//!
//! One thread does all six for one batch before it reads the next, so that
//! order is kept and an idle tunnel costs one read and one write.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taupe_net::merge::TunWrite;
use taupe_net::split::Split;
use taupe_net::tun::{READ_BUFFER_LEN, Read};
use taupe_net::udp::MAX_SEGMENTS;
use taupe_net::virtio::VirtioHeader;
use taupe_net::{ecn, icmp, ip};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD, Kind, classify, data_header};
use taupe_protocol::time::Instant;
use taupe_protocol::{Cause, Endpoint, Outbound, Peer, Reservation, Staged, inner, padded_len};
use tracing::{debug, trace, warn};

use crate::shared::{Command, Shared, boot_now};

/// The most payload that one UDP send takes: what an IPv4 datagram can hold.
/// The kernel cuts a batch only after it has passed as one datagram.
const MAX_SEND: usize = 65_507;

/// Carries packets from the TUN to the network until the TUN ends.
pub(crate) fn run(shared: &Shared) {
    let mut outbound = OutboundThread {
        shared,
        send: vec![0; MAX_SEND],
        unreachables: TokenBucket::default(),
        warned_of_loop: false,
    };
    let mut buffer = vec![0; READ_BUFFER_LEN];
    loop {
        match shared.tun.read(&mut buffer) {
            Ok(Read::Packet { header, range }) => {
                if let Some(packet) = buffer.get(range) {
                    outbound.carry(header, packet);
                }
            }
            Ok(Read::Stopped) => return,
            Ok(Read::Deleted) => return shared.send(Command::TunDeleted),
            Err(error) => {
                return shared.send(Command::Failed(format!("reading the TUN: {error}")));
            }
        }
    }
}

struct OutboundThread<'a> {
    shared: &'a Shared,
    /// Sealed messages, one after the other.
    send: Vec<u8>,
    unreachables: TokenBucket,
    warned_of_loop: bool,
}

impl OutboundThread<'_> {
    fn carry(&mut self, header: VirtioHeader, packet: &[u8]) {
        let Some(addresses) = inner::parse(packet) else {
            trace!("not an IP packet: dropped");
            return;
        };
        let now = boot_now();
        let routes = self.shared.path.routes();
        let Some(peer) = routes.lookup(addresses.destination) else {
            return self.refuse(now, packet);
        };
        if self.is_loop(packet, peer) {
            self.shared.path.counters().add(Cause::RoutingLoop, 1);
            if !self.warned_of_loop {
                self.warned_of_loop = true;
                warn!(
                    endpoint = ?peer.endpoint().map(|endpoint| endpoint.remote),
                    "a route leads to a peer's endpoint through the tunnel to that peer: set a \
                     FwMark with a rule for it, or a route to the endpoint beside the tunnel"
                );
            }
            return;
        }
        let split = match Split::new(header, packet) {
            Ok(split) => split,
            Err(error) => {
                debug!(%error, "a packet from the TUN contradicts its header: dropped");
                return;
            }
        };
        let mtu = self.shared.mtu.load(Ordering::Relaxed);
        let ecn = ecn::encapsulate(traffic_class(packet));
        let mut first = 0;
        while let Some(batch) = Batch::next(&split, first, mtu) {
            first += batch.count;
            match self
                .shared
                .path
                .reserve(now, peer, batch.count as u64, batch.bytes as u64)
            {
                Outbound::Send(reservation) => self.send(&split, &batch, reservation, ecn, peer),
                Outbound::Stage => self.stage(now, &split, &batch, ecn, peer),
                Outbound::NoEndpoint => return self.refuse(now, packet),
            }
        }
    }

    /// Whether this is transport data that this device has sealed for the very
    /// peer that it is routed to. Carried, it would come back larger each time,
    /// without end. A datagram to *another* peer's endpoint is well: that peer
    /// is reached through this one.
    fn is_loop(&self, packet: &[u8], peer: &Peer) -> bool {
        let Some((from, to, payload)) = udp_datagram(packet) else {
            return false;
        };
        from == self.shared.sockets.load().port()
            && matches!(classify(payload), Ok(Kind::Data))
            && peer
                .endpoint()
                .is_some_and(|endpoint| endpoint.remote == to)
            && data_header(payload).is_some_and(|(index, _)| peer.knows_index(index))
    }

    fn send(
        &mut self,
        split: &Split<'_>,
        batch: &Batch,
        reservation: Reservation,
        ecn: u8,
        peer: &Arc<Peer>,
    ) {
        if self.send.len() < batch.bytes {
            // A single packet on a jumbo TUN can be longer than a datagram; the
            // kernel will refuse it.
            self.send.resize(batch.bytes, 0);
        }
        let buffer = &mut self.send[..batch.bytes];
        for (i, message) in buffer.chunks_mut(batch.stride).enumerate() {
            let end = message.len() - (DATA_OVERHEAD - DATA_HEADER_LEN);
            let slot = &mut message[DATA_HEADER_LEN..end];
            let written = split.write(batch.first + i, slot);
            slot[written..].fill(0);
        }
        let endpoint = reservation.endpoint();
        let ready = reservation.seal(buffer, batch.stride);
        let sent = transmit(self.shared, &endpoint, ecn, &buffer[..ready], batch.stride);
        if matches!(sent, Ok(true)) {
            peer.clear_local_address();
        }
    }

    fn stage(&self, now: Instant, split: &Split<'_>, batch: &Batch, ecn: u8, peer: &Arc<Peer>) {
        let packets = (0..batch.count).map(|i| {
            let mut packet = vec![0; batch.message_len(i) - DATA_OVERHEAD];
            split.write(batch.first + i, &mut packet);
            Staged { packet, ecn }
        });
        self.shared.path.stage(now, peer, packets);
    }

    /// Tells the sender of a packet that it cannot be delivered, as the kernel
    /// does for a destination without peer or endpoint.
    fn refuse(&mut self, now: Instant, packet: &[u8]) {
        let mtu = self.shared.mtu.load(Ordering::Relaxed);
        if !self.unreachables.take(now) {
            return;
        }
        if let Some(answer) = icmp::unreachable(packet, mtu, None) {
            let _ = self.shared.tun.write(&TunWrite::single(&answer));
        }
    }
}

/// Sends a batch. `Ok(true)` if the local address it was to leave from does not
/// work any more.
pub(crate) fn transmit(
    shared: &Shared,
    endpoint: &Endpoint,
    tos: u8,
    buffer: &[u8],
    segment: usize,
) -> io::Result<bool> {
    let sent = shared.sockets.load().send(endpoint, tos, buffer, segment);
    if let Err(error) = &sent {
        debug!(remote = %endpoint.remote, %error, "sending failed");
    }
    sent.map(|sent| sent.local_dropped)
}

/// Consecutive segments that leave in one send.
struct Batch {
    first: usize,
    count: usize,
    /// Bytes of every message but the last.
    stride: usize,
    /// Bytes of the last message.
    last: usize,
    /// Bytes of all messages.
    bytes: usize,
}

impl Batch {
    fn next(split: &Split<'_>, first: usize, mtu: usize) -> Option<Self> {
        let left = split.count().checked_sub(first).filter(|left| *left > 0)?;
        let message = |length| padded_len(length, mtu) + DATA_OVERHEAD;
        let tail = message(split.last_len());
        let stride = if left == 1 {
            tail
        } else {
            message(split.segment_len())
        };
        let count = left.min(MAX_SEGMENTS).min((MAX_SEND / stride).max(1));
        let last = if count == left { tail } else { stride };
        Some(Self {
            first,
            count,
            stride,
            last,
            bytes: (count - 1) * stride + last,
        })
    }

    fn message_len(&self, i: usize) -> usize {
        if i + 1 == self.count {
            self.last
        } else {
            self.stride
        }
    }
}

/// The source port, the destination and the content of a packet that begins a
/// UDP datagram.
fn udp_datagram(packet: &[u8]) -> Option<(u16, SocketAddr, &[u8])> {
    const UDP_HEADER_LEN: usize = 8;
    let packet = ip::Packet::parse(packet).ok()?;
    let transport = packet.transport()?;
    if transport.protocol != ip::UDP || transport.fragment_offset != 0 {
        return None;
    }
    let datagram = packet.bytes().get(transport.offset..)?;
    let [a, b, c, d] = *datagram.first_chunk()?;
    let to = SocketAddr::new(packet.destination(), u16::from_be_bytes([c, d]));
    let payload = datagram.get(UDP_HEADER_LEN..)?;
    Some((u16::from_be_bytes([a, b]), to, payload))
}

/// The TOS or traffic class byte of a packet whose version has been checked.
fn traffic_class(packet: &[u8]) -> u8 {
    match packet {
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        [_, second, ..] => *second,
        _ => 0,
    }
}

/// ICMP errors per second at most, and at once.
const UNREACHABLES_PER_SECOND: u64 = 100;

/// Limits ICMP errors, as RFC 1812 §4.3.2.8 and RFC 4443 §2.4 (f) ask.
#[derive(Default)]
struct TokenBucket {
    /// When the bucket would be empty.
    spent_until: Instant,
}

impl TokenBucket {
    fn take(&mut self, now: Instant) -> bool {
        let cost = Duration::from_secs(1) / UNREACHABLES_PER_SECOND as u32;
        let floor = now - Duration::from_secs(1);
        let spent = self.spent_until.max(floor) + cost;
        let room = spent <= now;
        if room {
            self.spent_until = spent;
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_unreachables_at_once_and_one_each_hundredth() {
        let mut bucket = TokenBucket::default();
        let start = Instant(10_000_000_000);
        assert_eq!((0..200).filter(|_| bucket.take(start)).count(), 100);
        let next = start + Duration::from_millis(10);
        assert!(!bucket.take(next - Duration::from_nanos(1)));
        assert!(bucket.take(next));
        assert!(!bucket.take(next));
    }

    #[test]
    fn traffic_class_of_both_versions() {
        assert_eq!(traffic_class(&[0x45, 0xb9]), 0xb9);
        assert_eq!(traffic_class(&[0x6b, 0x9f]), 0xb9);
        assert_eq!(traffic_class(&[]), 0);
    }
}

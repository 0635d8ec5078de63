//! The outbound path, from the TUN to the network, in packet order:
//!
//! 1. *Read* a super-packet of at most 64 KiB from the TUN.
//! 2. Hand it to the *tap*, if there is one ([`taupe_packet::tap::Tap`]).
//! 3. *Route* it: its destination selects a peer by allowed IPs.
//! 4. *Split* it straight into the send buffer, the batch ([`crate::batch`]). If the thread is
//!    busy, packets that wait in the TUN join the same batch until its sends are full.
//! 5. *Reserve* counters for the whole batch. This takes the peer's lock once.
//! 6. *Seal* the messages in place.
//! 7. *Send* the batch with one system call.
//!
//! For example, a TCP stream gives a super-packet of 45 segments. They become 45 messages in one
//! buffer, with one lock and one `sendmsg`.
//!
//! One thread takes a packet through all steps, so packets stay in order.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use taupe_os_linux::tun::{READ_BUFFER_LEN, Read};
use taupe_os_linux::udp::Header;
use taupe_packet::ip::Packet;
use taupe_packet::merge::TunWrite;
use taupe_packet::split::Split;
use taupe_packet::virtio::VirtioHeader;
use taupe_packet::{ecn, icmp};
use taupe_protocol::time::Instant;
use taupe_protocol::{DropReason, Outbound, Peer, Reservation, Staged, TokenBucket, padded_len};
use tracing::{debug, trace};

use crate::batch::Batch;
use crate::lane::Lane;
use crate::loops::{LoopDetector, Verdict};
use crate::schedule::PacketPath;
use crate::schedule::load::Turn;
use crate::shared::{BUSY, Command};
use taupe_packet::tap::TapOut;
use taupe_runtime::clock;

/// Reads in one turn, at most. [`TURN_LEN`] does not bound them, because packets that are dropped
/// add nothing to it.
const MAX_READS: usize = 512;

/// Bytes after which a turn ends. The turn then sends its last batch even if it is not full; this
/// is long enough that one small send costs little beside the full ones.
const TURN_LEN: usize = 512 << 10;

/// Carries packets from the TUN to the network.
pub(crate) struct OutboundPath {
    lane: Arc<Lane>,
    buffer: Vec<u8>,
    /// The time at which the last turn ended.
    ended: Instant,
    tap: Option<Box<dyn TapOut>>,
    outgoing: Outgoing,
}

/// State of the steps after the tap.
struct Outgoing {
    batch: Batch<Peer>,
    icmp_errors: IcmpErrorLimit,
    loops: LoopDetector,
    /// Bytes that have been carried in this turn.
    carried: usize,
}

impl OutboundPath {
    pub(crate) fn new(lane: Arc<Lane>) -> Self {
        let tap = lane.shared.tap.as_ref().map(|tap| tap.outgoing());
        Self {
            lane,
            buffer: vec![0; READ_BUFFER_LEN],
            ended: Instant::default(),
            tap,
            outgoing: Outgoing {
                batch: Batch::new(),
                icmp_errors: IcmpErrorLimit::default(),
                loops: LoopDetector::default(),
                carried: 0,
            },
        }
    }
}

impl PacketPath for OutboundPath {
    fn source(&self) -> BorrowedFd<'_> {
        self.lane.tun.as_fd()
    }

    /// Carries one packet. If the thread is busy, also carries the packets that wait behind it.
    fn turn(&mut self, waits: bool) -> ControlFlow<(), Turn> {
        let Self {
            lane,
            buffer,
            ended,
            tap,
            outgoing,
        } = self;
        let read = if waits {
            lane.tun.read(buffer).map(Some)
        } else {
            lane.tun.read_ready(buffer)
        };
        let read_at = clock::boot();
        if let Some(read) = read.transpose() {
            outgoing.take(lane, tap, read, buffer)?;
            if read_at.since(*ended) < BUSY {
                for _ in 1..MAX_READS {
                    if outgoing.carried >= TURN_LEN {
                        break;
                    }
                    let Some(read) = lane.tun.read_queued(buffer) else {
                        break;
                    };
                    outgoing.take(lane, tap, Ok(read), buffer)?;
                }
            }
            outgoing.flush(lane);
        }
        *ended = clock::boot();
        ControlFlow::Continue(Turn {
            read_at,
            ended: *ended,
            bytes: std::mem::take(&mut outgoing.carried),
        })
    }
}

impl Outgoing {
    /// Step 1: handles the result of a read. Breaks if the TUN has ended.
    fn take(
        &mut self,
        lane: &Lane,
        tap: &mut Option<Box<dyn TapOut>>,
        read: io::Result<Read>,
        buffer: &mut [u8],
    ) -> ControlFlow<()> {
        match read {
            Ok(Read::Packet { header, range }) => {
                if let Some(packet) = buffer.get_mut(range) {
                    match tap {
                        Some(tap) => self.pass(lane, &mut **tap, header, packet),
                        None => self.carry(lane, header, packet),
                    }
                }
                return ControlFlow::Continue(());
            }
            Ok(Read::Stopped) => {}
            Ok(Read::Deleted) => lane.shared.send(Command::TunDeleted),
            Err(error) => {
                let why = format!("reading the TUN: {error}");
                lane.shared.send(Command::Failed(why));
            }
        }
        ControlFlow::Break(())
    }

    /// Step 2: hands a packet to the tap, and carries the packets that the tap returns.
    fn pass(&mut self, lane: &Lane, tap: &mut dyn TapOut, header: VirtioHeader, packet: &mut [u8]) {
        let mut carry = |header, packet: &[u8]| self.carry(lane, header, packet);
        let answer = tap.handle(clock::boot().0, header, packet, &mut carry);
        if let Some(answer) = answer {
            // If the write fails, the sender retries.
            let _ = lane.tun.write(&TunWrite::single(&answer));
        }
    }

    /// Steps 3 and 4: routes a packet and splits it into the batch of its peer. Flushes the batch
    /// first if the packet does not fit into it. The IP header is parsed here, once.
    fn carry(&mut self, lane: &Lane, header: VirtioHeader, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            trace!("not an IP packet: dropped");
            return;
        };
        let routes = lane.shared.path.routes();
        let Some(peer) = routes.lookup(packet.destination()) else {
            return self.icmp_errors.refuse(lane, bytes);
        };
        let hop_limit = match self.loops.check(lane, &packet, peer) {
            Verdict::Loop => return lane.shared.path.counters().add(DropReason::RoutingLoop, 1),
            Verdict::SystemHopLimit => None,
            Verdict::HopLimit(count) => Some(count),
        };
        let split = match Split::new(header, bytes) {
            Ok(split) => split,
            Err(error) => {
                debug!(%error, "a packet from the TUN contradicts its header: dropped");
                return;
            }
        };
        let mtu = lane.shared.mtu.load(Ordering::Relaxed);
        let header = Header {
            tclass: ecn::encapsulate(packet.tos()),
            hop_limit,
        };
        for i in 0..split.count() {
            let padded = padded_len(split.len_of(i), mtu);
            if !self.batch.takes(peer, header, padded) {
                self.flush(lane);
            }
            let slot = self.batch.push(peer, header, padded);
            let written = split.write(i, slot);
            slot[written..].fill(0);
        }
    }

    /// Step 5: reserves counters for the batch, and has it sealed and sent. Without a session, the
    /// packets are staged in the peer, and the control loop starts a handshake. Without an endpoint,
    /// their senders get ICMP errors.
    fn flush(&mut self, lane: &Lane) {
        let Some(peer) = self.batch.peer() else {
            return;
        };
        let now = clock::boot();
        let (messages, bytes) = (self.batch.count() as u64, self.batch.bytes() as u64);
        match lane.shared.path.reserve(now, peer, messages, bytes) {
            Outbound::Send(reservation) => self.send(lane, reservation),
            Outbound::Stage => {
                let ecn = self.batch.header().tclass;
                let staged = self.batch.packets().map(|packet| Staged {
                    packet: packet.to_vec(),
                    ecn,
                });
                lane.shared.path.stage(now, peer, staged);
            }
            Outbound::NoEndpoint => {
                let packets = self.batch.packets().map(Packet::parse);
                for packet in packets.filter_map(Result::ok) {
                    self.icmp_errors.refuse(lane, packet.bytes());
                }
            }
        }
        self.carried += self.batch.bytes();
        self.batch.clear();
    }

    /// Steps 6 and 7: seals and sends the batch.
    fn send(&mut self, lane: &Lane, reservation: Reservation) {
        let endpoint = reservation.endpoint();
        let (header, stride) = (self.batch.header(), self.batch.stride());
        let buffer = self.batch.messages();
        let ready = reservation.seal(buffer, stride);
        let local_address_dropped = lane.transmit(&endpoint, header, &buffer[..ready], stride);
        if local_address_dropped && let Some(peer) = self.batch.peer() {
            peer.clear_local_address();
        }
    }
}

/// ICMP errors per second, at most, and the largest burst of them.
const ICMP_ERRORS_PER_SECOND: u64 = 100;

/// Limits the rate of ICMP errors (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)) with a token bucket.
#[derive(Default)]
struct IcmpErrorLimit(TokenBucket<ICMP_ERRORS_PER_SECOND, ICMP_ERRORS_PER_SECOND>);

impl IcmpErrorLimit {
    /// Answers a packet with "host unreachable", as the kernel's WireGuard does for a destination
    /// without a peer or endpoint.
    fn refuse(&mut self, lane: &Lane, packet: &[u8]) {
        if !self.0.take(clock::boot()) {
            return;
        }
        let mtu = lane.shared.mtu.load(Ordering::Relaxed);
        if let Some(answer) = icmp::error(icmp::Error::HostUnreachable, packet, mtu, None) {
            let _ = lane.tun.write(&TunWrite::single(&answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn icmp_errors_are_limited_to_100_a_second() {
        let IcmpErrorLimit(mut bucket) = IcmpErrorLimit::default();
        let start = Instant(10_000_000_000);
        assert_eq!((0..200).filter(|_| bucket.take(start)).count(), 100);
        let next = start + Duration::from_millis(10);
        assert!(!bucket.take(next - Duration::from_nanos(1)));
        assert!(bucket.take(next));
        assert!(!bucket.take(next));
    }
}

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
//!
//! If the fair queue is switched on, packets that find others before them wait there between steps
//! 2 and 3 ([`backlog`]). The TUN is drained into it before each send, and the batch takes from it.

use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taupe_os_linux::tun::{READ_BUFFER_LEN, Read};
use taupe_os_linux::udp::Header;
use taupe_packet::ip::Packet;
use taupe_packet::merge::TunWrite;
use taupe_packet::queue::SUPER_PACKET;
use taupe_packet::split::Split;
use taupe_packet::virtio::VirtioHeader;
use taupe_packet::{ecn, icmp};
use taupe_protocol::time::Instant;
use taupe_protocol::{DropReason, Outbound, Peer, Reservation, Staged, padded_len};
use tracing::{debug, trace};

use crate::batch::Batch;
use crate::lane::Lane;
use crate::loops::{LoopDetector, Verdict};
use crate::options::Offloads;
use crate::schedule::PacketPath;
use crate::schedule::load::Turn;
use crate::shared::{BUSY, Command};
use taupe_packet::tap::TapOut;
use taupe_runtime::clock;

mod backlog;

use backlog::{Backlog, Segments};

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
    /// The fair queue. `None` if it is switched off or the TUN cannot be drained.
    backlog: Option<Backlog>,
    outgoing: Outgoing,
}

/// State of the steps after the tap.
struct Outgoing {
    batch: Batch<Peer>,
    loops: LoopDetector,
    /// Bytes that have been carried in this turn.
    carried: usize,
}

impl OutboundPath {
    pub(crate) fn new(lane: Arc<Lane>, offloads: Offloads) -> Self {
        let tap = lane.shared.tap.as_ref().map(|tap| tap.outgoing());
        Self {
            lane,
            buffer: vec![0; READ_BUFFER_LEN],
            ended: Instant::default(),
            tap,
            backlog: offloads.fair_queue.then(Backlog::new),
            outgoing: Outgoing {
                batch: Batch::new(),
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

    fn backlog(&self) -> Option<Duration> {
        self.backlog.as_ref()?.delay()
    }

    /// Carries one packet. If the thread is busy, also carries the packets that wait behind it.
    fn turn(&mut self, waits: bool) -> ControlFlow<(), Turn> {
        let Self {
            lane,
            buffer,
            ended,
            tap,
            backlog,
            outgoing,
        } = self;
        let has_backlog = backlog.as_ref().is_some_and(|it| !it.is_empty());
        // Without such reads, packets would wait in the TUN's ring before they enter the queue.
        if !has_backlog && !lane.tun.can_read_queued() {
            *backlog = None;
        }
        let read = if waits {
            lane.tun.read(buffer).map(Some)
        } else if has_backlog {
            Ok(lane.tun.read_queued(buffer))
        } else {
            lane.tun.read_ready(buffer)
        };
        let read_at = clock::boot();
        let is_busy = read_at.since(*ended) < BUSY;
        let packet = match read.transpose() {
            Some(read) => Some(received(lane, read)?),
            None => None,
        };
        match (backlog, packet) {
            (Some(backlog), packet) => {
                outgoing.carry_fairly(lane, tap, backlog, buffer, packet, is_busy)?;
            }
            (None, Some(packet)) => outgoing.carry_waiting(lane, tap, buffer, packet, is_busy)?,
            (None, None) => {}
        }
        *ended = clock::boot();
        ControlFlow::Continue(Turn {
            read_at,
            ended: *ended,
            bytes: std::mem::take(&mut outgoing.carried),
        })
    }
}

/// A packet in the buffer for reads.
type InBuffer = (VirtioHeader, Range<usize>);

/// Step 1: handles the result of a read. Breaks if the TUN has ended.
fn received(lane: &Lane, read: io::Result<Read>) -> ControlFlow<(), InBuffer> {
    match read {
        Ok(Read::Packet { header, range }) => return ControlFlow::Continue((header, range)),
        Ok(Read::Stopped) => {}
        Ok(Read::Deleted) => lane.shared.send(Command::TunDeleted),
        Err(error) => {
            let why = format!("reading the TUN: {error}");
            lane.shared.send(Command::Failed(why));
        }
    }
    ControlFlow::Break(())
}

impl Outgoing {
    /// Carries a packet, and if the thread is busy those that wait behind it.
    fn carry_waiting(
        &mut self,
        lane: &Lane,
        tap: &mut Option<Box<dyn TapOut>>,
        buffer: &mut [u8],
        packet: InBuffer,
        is_busy: bool,
    ) -> ControlFlow<()> {
        self.take(lane, tap, buffer, packet);
        let more = if is_busy { MAX_READS - 1 } else { 0 };
        for _ in 0..more {
            if self.carried >= TURN_LEN {
                break;
            }
            let Some(read) = lane.tun.read_queued(buffer) else {
                break;
            };
            let packet = received(lane, Ok(read))?;
            self.take(lane, tap, buffer, packet);
        }
        self.flush(lane);
        ControlFlow::Continue(())
    }

    /// The same through the fair queue. It drains the TUN into the queue, and takes a batch of the
    /// queue through steps 3 to 7, until the queue is empty, the send buffer is full, or the turn
    /// ends. A packet that finds no others does not enter the queue.
    fn carry_fairly(
        &mut self,
        lane: &Lane,
        tap: &mut Option<Box<dyn TapOut>>,
        backlog: &mut Backlog,
        buffer: &mut Vec<u8>,
        packet: Option<InBuffer>,
        is_busy: bool,
    ) -> ControlFlow<()> {
        match packet {
            Some(packet) if !is_busy && backlog.passes(lane, packet.1.len()) => {
                self.take(lane, tap, buffer, packet);
                self.flush(lane);
                return ControlFlow::Continue(());
            }
            Some(packet) => enqueue(lane, tap, backlog, buffer, packet),
            None => {}
        }
        while self.carried < TURN_LEN {
            for _ in 0..MAX_READS {
                let Some(read) = lane.tun.read_queued(buffer) else {
                    break;
                };
                let packet = received(lane, Ok(read))?;
                enqueue(lane, tap, backlog, buffer, packet);
            }
            if backlog.is_empty() {
                break;
            }
            let Some((room, ran_empty)) = backlog.room(lane) else {
                break;
            };
            let sent = self.carry_batch(lane, backlog, room);
            backlog.note_sent(clock::boot(), sent, ran_empty);
            if backlog.is_empty() {
                break;
            }
        }
        backlog.count(lane);
        ControlFlow::Continue(())
    }

    /// Takes a packet through the steps 2 to 4.
    fn take(
        &mut self,
        lane: &Lane,
        tap: &mut Option<Box<dyn TapOut>>,
        buffer: &mut [u8],
        (header, range): InBuffer,
    ) {
        let Some(packet) = buffer.get_mut(range) else {
            return;
        };
        match tap {
            Some(tap) => pass(lane, &mut **tap, header, packet, &mut |header, packet| {
                self.carry(lane, header, packet);
            }),
            None => self.carry(lane, header, packet),
        }
    }

    /// Carries a batch from the queue: `room` bytes, or more if that is a whole super-packet and two
    /// of them fit. Returns the bytes of its packets.
    fn carry_batch(&mut self, lane: &Lane, backlog: &mut Backlog, room: usize) -> usize {
        let now = clock::boot();
        // If the queue gives so much, the rate is high enough for batches of two super-packets.
        let room = match room {
            SUPER_PACKET.. => 2 * SUPER_PACKET,
            _ => room,
        };
        let mut taken = 0;
        while taken < room {
            let fitting = self.batch.room().min(room - taken);
            let bytes = backlog.pop(now, fitting, |segments| self.carry_segments(lane, segments));
            taken += bytes;
            if bytes == 0 || self.batch.room() == 0 {
                break;
            }
        }
        self.flush(lane);
        taken
    }

    /// Steps 3 and 4 for a whole packet.
    fn carry(&mut self, lane: &Lane, header: VirtioHeader, packet: &[u8]) {
        self.carry_segments(
            lane,
            Segments {
                header,
                packet,
                segments: 0..usize::MAX,
                is_marked: false,
            },
        );
    }

    /// Steps 3 and 4: routes a packet and splits it into the batch of its peer. Flushes the batch
    /// first if the packet does not fit into it. The IP header is parsed here, once.
    fn carry_segments(&mut self, lane: &Lane, segments: Segments<'_>) {
        let Segments {
            header,
            packet: bytes,
            segments,
            is_marked,
        } = segments;
        let Ok(packet) = Packet::parse(bytes) else {
            trace!("not an IP packet: dropped");
            return;
        };
        let routes = lane.shared.path.routes();
        let Some(peer) = routes.lookup(packet.destination()) else {
            return refuse(lane, bytes);
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
        for i in segments.start..segments.end.min(split.count()) {
            let padded = padded_len(split.len_of(i), mtu);
            if !self.batch.takes(peer, header, padded) {
                self.flush(lane);
            }
            let slot = self.batch.push(peer, header, padded);
            let written = split.write(i, slot);
            slot[written..].fill(0);
            if is_marked && i == segments.start {
                ecn::mark(slot);
            }
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
        match lane
            .shared
            .path
            .reserve_on(lane.id, now, peer, messages, bytes)
        {
            Outbound::Send(reservation) => self.send(lane, reservation),
            Outbound::Stage => {
                let ecn = self.batch.header().tclass;
                let staged = self.batch.packets().map(|packet| Staged {
                    packet: packet.to_vec(),
                    ecn,
                    lane: lane.id,
                });
                lane.shared.path.stage(now, peer, staged);
            }
            Outbound::NoEndpoint => {
                let packets = self.batch.packets().map(Packet::parse);
                for packet in packets.filter_map(Result::ok) {
                    refuse(lane, packet.bytes());
                }
            }
        }
        self.carried += self.batch.bytes();
        self.batch.clear();
    }

    /// Steps 6 and 7: seals and sends the batch. The reservation lasts until the batch is sent,
    /// because other lanes may have to wait for it.
    fn send(&mut self, lane: &Lane, mut reservation: Reservation) {
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

/// Takes a packet through step 2 into the queue.
fn enqueue(
    lane: &Lane,
    tap: &mut Option<Box<dyn TapOut>>,
    backlog: &mut Backlog,
    buffer: &mut Vec<u8>,
    (header, range): InBuffer,
) {
    let now = clock::boot();
    let Some(tap) = tap else {
        return backlog.push_read(now, header, buffer, range);
    };
    if let Some(packet) = buffer.get_mut(range) {
        pass(lane, &mut **tap, header, packet, &mut |header, packet| {
            backlog.push(now, header, packet);
        });
    }
}

/// Step 2: hands a packet to the tap, and the packets that the tap returns to `forward`.
fn pass(
    lane: &Lane,
    tap: &mut dyn TapOut,
    header: VirtioHeader,
    packet: &mut [u8],
    forward: &mut dyn FnMut(VirtioHeader, &[u8]),
) {
    let answer = tap.handle(clock::boot().0, header, packet, forward);
    if let Some(answer) = answer {
        // If the write fails, the sender retries.
        let _ = lane.tun.write(&TunWrite::single(&answer));
    }
}

/// Answers a packet with "host unreachable", as the kernel's WireGuard does for a destination
/// without a peer or endpoint.
fn refuse(lane: &Lane, packet: &[u8]) {
    if !lane.shared.icmp_errors.admit(clock::boot()) {
        return;
    }
    let mtu = lane.shared.mtu.load(Ordering::Relaxed);
    if let Some(answer) = icmp::error(icmp::Error::HostUnreachable, packet, mtu, None) {
        let _ = lane.tun.write(&TunWrite::single(&answer));
    }
}

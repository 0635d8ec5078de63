//! Packets that wait between the TUN's ring and the send buffer, in a fair queue
//! ([`taupe_packet::queue`]), and the buffers that hold them. docs/design/latency.md describes both.

use std::ops::Range;
use std::time::Duration;

use taupe_os_linux::tun::READ_BUFFER_LEN;
use taupe_packet::ip::Packet;
use taupe_packet::queue::{FairQueue, FlowHasher, QueueStats, Shape};
use taupe_packet::split::Split;
use taupe_packet::virtio::VirtioHeader;
use taupe_protocol::Durations;
use taupe_protocol::time::Instant;
use taupe_runtime::{clock, random};
use tracing::{debug, trace};

use crate::lane::Lane;

/// Lengths of buffers, and the numbers of unused ones to keep. A packet is copied into the shortest
/// in which it fits, unless that is the buffer it was read into. No buffer of more than 2 KiB is more
/// than twice as long as its packet, so all of them take twice the queue's limit at most.
const CLASSES: [(usize, usize); 6] = [
    (2 << 10, 64),
    (4 << 10, 32),
    (8 << 10, 16),
    (16 << 10, 8),
    (32 << 10, 8),
    (READ_BUFFER_LEN, 34),
];

/// The class of buffers for reads.
const READ: usize = CLASSES.len() - 1;

/// Bytes of a packet that may be sent without a look at the send buffer. The look costs a system
/// call, and these would leave the queue first anyway.
const SHORT: usize = 256;

/// Bytes of a packet that may be sent past the empty queue. A longer one is a super-packet, and more
/// of them often come close behind. A batch of several costs less for each, here and at the receiver.
const SINGLE: usize = 2 << 10;

/// The time without packets in the queue after which unused buffers are freed.
const UNUSED: Duration = Duration::from_secs(1);

/// Bounds of a wait for the send buffer.
const MIN_WAIT: Duration = Duration::from_micros(50);
const MAX_WAIT: Duration = Duration::from_millis(10);

pub(super) struct Backlog {
    queue: FairQueue<Buffered>,
    hasher: FlowHasher,
    spare: Spare,
    /// The time at which the last packet entered the queue.
    used: Instant,
    /// The time after which the send buffer has room.
    delay: Duration,
    /// Counts that are included in the device's.
    counted: QueueStats,
    /// Times that are not included in the device's yet.
    times: Durations,
}

/// A packet in a buffer.
struct Buffered {
    header: VirtioHeader,
    buffer: Vec<u8>,
    range: Range<usize>,
    class: usize,
}

/// A portion of a packet.
pub(super) struct Segments<'a> {
    pub(super) header: VirtioHeader,
    pub(super) packet: &'a [u8],
    pub(super) segments: Range<usize>,
    pub(super) is_marked: bool,
}

impl Backlog {
    /// Returns an empty queue.
    pub(super) fn new() -> Self {
        let mut key = [0; 16];
        random::fill(&mut key);
        Self {
            queue: FairQueue::new(),
            hasher: FlowHasher::new(&key),
            spare: Spare::default(),
            used: Instant::default(),
            delay: Duration::ZERO,
            counted: QueueStats::default(),
            times: Durations::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the time after which packets can be sent; `None` if none wait.
    pub(super) fn delay(&self) -> Option<Duration> {
        (!self.is_empty()).then_some(self.delay)
    }

    /// Returns true if a packet may be sent past the empty queue. Frees an unused buffer if the queue
    /// has been empty for long.
    pub(super) fn passes(&mut self, lane: &Lane, len: usize) -> bool {
        if self.spare.has_long() && clock::boot().since(self.used) >= UNUSED {
            self.spare.shrink();
        }
        self.is_empty() && (len <= SHORT || len <= SINGLE && self.room(lane).is_some())
    }

    /// Adds a packet that is in a buffer for reads. The buffer is replaced if the packet stays
    /// there.
    pub(super) fn push_read(
        &mut self,
        now: Instant,
        header: VirtioHeader,
        buffer: &mut Vec<u8>,
        range: Range<usize>,
    ) {
        let Some(packet) = buffer.get(range.clone()) else {
            return;
        };
        if class(packet.len()) != READ {
            return self.push(now, header, packet);
        }
        let Some(shape) = self.shape(header, packet) else {
            return;
        };
        let buffer = std::mem::replace(buffer, self.spare.take(READ));
        let packet = Buffered {
            header,
            buffer,
            range,
            class: READ,
        };
        self.enqueue(now, packet, shape);
    }

    /// Adds a copy of a packet.
    pub(super) fn push(&mut self, now: Instant, header: VirtioHeader, packet: &[u8]) {
        let class = class(packet.len());
        let Some(shape) = self.shape(header, packet) else {
            return;
        };
        let mut buffer = self.spare.take(class);
        let range = 0..packet.len().min(buffer.len());
        buffer[range.clone()].copy_from_slice(&packet[range.clone()]);
        let packet = Buffered {
            header,
            buffer,
            range,
            class,
        };
        self.enqueue(now, packet, shape);
    }

    /// Returns the shape of a packet. `None` if it has to be dropped.
    fn shape(&self, header: VirtioHeader, bytes: &[u8]) -> Option<Shape> {
        let Ok(packet) = Packet::parse(bytes) else {
            trace!("not an IP packet: dropped");
            return None;
        };
        let split = Split::new(header, bytes);
        let split = split.inspect_err(|error| {
            debug!(%error, "a packet from the TUN contradicts its header: dropped");
        });
        Some(Shape::of(&packet, &split.ok()?, &self.hasher))
    }

    fn enqueue(&mut self, now: Instant, packet: Buffered, shape: Shape) {
        self.used = now;
        let spare = &mut self.spare;
        let discard = &mut |packet| spare.give(packet);
        self.queue.enqueue(now.0, packet, shape, discard);
    }

    /// Hands the next segments, of at most `room` bytes but at least one, to `carry`. Returns their
    /// bytes, 0 if there are none.
    pub(super) fn pop(
        &mut self,
        now: Instant,
        room: usize,
        carry: impl FnOnce(Segments<'_>),
    ) -> usize {
        let spare = &mut self.spare;
        let discard = &mut |packet| spare.give(packet);
        let Some(mut portion) = self.queue.dequeue(now.0, room, discard) else {
            return 0;
        };
        self.times.add(Duration::from_nanos(portion.waited));
        let buffered = portion.handle.get();
        let packet = buffered.buffer.get(buffered.range.clone());
        carry(Segments {
            header: buffered.header,
            packet: packet.unwrap_or_default(),
            segments: portion.segments,
            is_marked: portion.is_marked,
        });
        if let Some(last) = portion.handle.into_last() {
            self.spare.give(last);
        }
        portion.bytes
    }

    /// Returns the bytes that one batch should take, and true if the send buffer is empty. `None`
    /// while more than half of the send buffer is full; [`Self::delay`] then returns the time until
    /// it is not.
    pub(super) fn room(&mut self, lane: &Lane) -> Option<(usize, bool)> {
        let limit = self.queue.in_flight_limit();
        let unsent = lane.sockets.load().unsent();
        let excess = unsent.saturating_sub(limit / 2);
        if excess > 0 {
            let time = Duration::from_nanos(self.queue.time_to_send(excess));
            self.delay = time.clamp(MIN_WAIT, MAX_WAIT);
            return None;
        }
        self.delay = Duration::ZERO;
        let room = self.queue.portion().min(limit - unsent);
        Some((room, unsent == 0))
    }

    /// Adds the queue's counts to the device's.
    pub(super) fn count(&mut self, lane: &Lane) {
        let stats = self.queue.stats();
        if stats != self.counted {
            lane.shared.queue_counters.add(self.counted, stats);
            self.counted = stats;
        }
        if !self.times.is_empty() {
            lane.shared.queue_times.add(&self.times);
            self.times = Durations::default();
        }
    }

    /// Records that bytes have been sent ([`FairQueue::note_sent`]).
    pub(super) fn note_sent(&mut self, now: Instant, bytes: usize, ran_empty: bool) {
        self.queue.note_sent(now.0, bytes, ran_empty);
    }
}

/// Unused buffers, by class.
#[derive(Default)]
struct Spare([Vec<Vec<u8>>; CLASSES.len()]);

impl Spare {
    /// Returns a buffer with arbitrary bytes.
    fn take(&mut self, class: usize) -> Vec<u8> {
        let spare = self.0[class].pop();
        spare.unwrap_or_else(|| vec![0; CLASSES[class].0])
    }

    fn give(&mut self, packet: Buffered) {
        let spare = &mut self.0[packet.class];
        if spare.len() < CLASSES[packet.class].1 {
            spare.push(packet.buffer);
        }
    }

    fn has_long(&self) -> bool {
        !self.0[READ].is_empty()
    }

    /// Frees one of the longest buffers.
    fn shrink(&mut self) {
        drop(self.0[READ].pop());
    }
}

/// Returns the class of the shortest buffer for a packet.
fn class(len: usize) -> usize {
    let fits = CLASSES.iter().position(|(class, _)| len <= *class);
    fits.unwrap_or(READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1_000_000_000);

    /// Returns a UDP packet of `len` bytes.
    fn packet(len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[9] = 17;
        packet
    }

    /// Returns the packet that leaves next.
    fn pop(backlog: &mut Backlog) -> Vec<u8> {
        let mut out = Vec::new();
        let bytes = backlog.pop(NOW, usize::MAX, |it| {
            assert_eq!(it.segments, 0..1);
            out = it.packet.to_vec();
        });
        assert_eq!(bytes, out.len());
        out
    }

    #[test]
    fn packets_wait_in_buffers_of_their_length() {
        let mut backlog = Backlog::new();
        let mut buffer = vec![0; READ_BUFFER_LEN];
        let lengths = [20, 2048, 4096, 8192, 16_384, 30_000, 60_000];
        for (class, len) in lengths.into_iter().enumerate() {
            let packet = packet(len);
            let start = 5;
            buffer[start..start + len].copy_from_slice(&packet);
            let before = buffer.as_ptr();
            let range = start..start + len;
            backlog.push_read(NOW, VirtioHeader::default(), &mut buffer, range);
            assert_eq!(buffer.len(), READ_BUFFER_LEN);
            assert_eq!(buffer.as_ptr() == before, len < 60_000, "{len}");
            assert_eq!(backlog.delay(), Some(Duration::ZERO));
            assert_eq!(pop(&mut backlog), packet);
            assert!(backlog.is_empty());
            let unused = backlog.spare.0.iter().map(Vec::len).sum::<usize>();
            // The first two lengths have the same class.
            assert_eq!(unused, class.max(1));
        }
        backlog.spare.shrink();
        assert!(backlog.spare.0[READ].is_empty());
    }

    #[test]
    fn buffers_of_dropped_packets_are_used_again() {
        let mut backlog = Backlog::new();
        for _ in 0..100 {
            backlog.push(NOW, VirtioHeader::default(), &packet(60_000));
        }
        let dropped = 100 - backlog.queue.len();
        assert!(dropped > 0);
        // Each dropped packet's buffer has become that of the next.
        assert_eq!(backlog.spare.0[READ].len(), 1);
        while !backlog.is_empty() {
            assert_eq!(pop(&mut backlog).len(), 60_000);
        }
        assert_eq!(backlog.spare.0[READ].len(), CLASSES[READ].1);
    }

    #[test]
    fn what_is_no_packet_is_dropped() {
        let mut backlog = Backlog::new();
        let header = VirtioHeader::default();
        for bytes in [&[][..], &[0x45; 10], &[0; 100]] {
            backlog.push(NOW, header, bytes);
            backlog.push_read(NOW, header, &mut bytes.to_vec(), 0..bytes.len());
        }
        backlog.push_read(NOW, header, &mut packet(100), 0..101);
        let segmented = VirtioHeader {
            gso_type: 99,
            ..header
        };
        backlog.push(NOW, segmented, &packet(100));
        assert!(backlog.is_empty());
        assert_eq!(backlog.pop(NOW, 1, |_| panic!("a packet")), 0);
    }
}

//! A fair queue with active management for packets that wait to be sent (FQ-CoDel, RFC 8290).
//!
//! A queue forms where packets arrive faster than they leave. In one list for all of them, a short
//! packet waits behind everything that a download has sent before it. Here each flow has a list:
//!
//! ```text
//!               hash of addresses,       one list       new flows first,      one portion
//!               protocol, ports        for each flow    then in turn         of a packet
//!                                      ┌─ ▮▮▮▮▮▮▮ ─┐
//!  enqueue ───► flow ────────────────► ├─ ▮ ───────┤ ───► scheduler ───► signal? ───► dequeue
//!     │                                └─ ▮▮▮ ─────┘                        │
//!     └► over a limit: drop from the longest list            mark or drop one segment
//! ```
//!
//! - **Scheduler**: deficit round robin. A flow whose packets do not wait when the next one arrives
//!   (a *sparse* flow: a key press, a DNS query, an acknowledgement) comes before the others.
//! - **Signals**: a sender whose packets have waited too long for some time gets a signal to slow
//!   down (`codel.rs`): a congestion mark if it supports ECN (RFC 3168), else the loss of a segment.
//!   A sender with a large share of a long queue gets one without delay.
//! - **Portions**: a packet from a TUN is a super-packet of up to 64 KiB. On a slow link it leaves in
//!   portions of some segments, between which other flows have their turn. Both a mark and a loss
//!   concern one segment of a super-packet. A TCP sender reacts to one as to all, and a loss of all
//!   would cost 44 retransmissions instead of one.
//! - **Sizes** follow the measured rate of sending (`rate.rs`).
//!
//! For example, a download has 20 super-packets here, and a ping arrives. The next call of
//! [`FairQueue::dequeue`] returns the ping. On a link of 100 Mbit/s each call returns four segments of
//! the download, so the ping has waited for 0.5 ms at most, instead of 100 ms behind the download.
//!
//! No time, randomness or I/O is in here: `now` is a monotonic clock in nanoseconds. The queue copies
//! no packet. It stores handles of the type `T`, such as a buffer or its index, and hands each of them
//! out once: with the packet's last portion, or to `discard`.

mod codel;
mod fifo;
mod flow;
mod rate;

use std::collections::VecDeque;
use std::ops::Range;

pub use self::flow::FlowHasher;
pub use self::rate::SUPER_PACKET;
use self::{
    fifo::Nodes,
    flow::{Flow, FlowTable, Listed},
    rate::{MAX_LIMIT, SendRate},
};
use crate::{ecn, ip::Packet, split::Split};

/// Packets that may wait. It bounds the number of buffers when all packets are short.
pub const MAX_PACKETS: usize = 1024;

/// The time in nanoseconds for which the queue may be over the limit that follows from the rate. In
/// ten of CoDel's intervals, senders that react to signals have reacted. A new flow on a slow link
/// may need that: nothing is known of the rate when its first packets come.
const GRACE: u64 = 1_000_000_000;

/// Bytes and packets that the queue drops at a time when it is over a limit: at least one of these
/// numbers, but not more than half of the list. The search for the longest list is then rare also
/// if short packets come faster than they leave (RFC 8290, section 4.1.3, drops 64 packets).
const SHED_BYTES: usize = 32 << 10;
const SHED_PACKETS: usize = 64;

/// Bytes of a packet, at most; longer ones count as this.
const MAX_LEN: usize = 1 << 17;

/// Properties of a packet, on which the queue decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    flow: u64,
    is_ecn_capable: bool,
    segments: usize,
    segment_len: usize,
    last_len: usize,
}

impl Shape {
    /// Returns the shape of a packet with `segments` segments of `segment_len` bytes with headers,
    /// except that the last has `last_len`. All these are at least 1. `flow` is a keyed hash
    /// ([`FlowHasher`]).
    #[must_use]
    pub fn new(
        flow: u64,
        is_ecn_capable: bool,
        segments: usize,
        segment_len: usize,
        last_len: usize,
    ) -> Self {
        Self {
            flow,
            is_ecn_capable,
            segments: segments.clamp(1, MAX_LEN),
            segment_len: segment_len.clamp(1, MAX_LEN),
            last_len: last_len.clamp(1, MAX_LEN),
        }
    }

    /// Returns the shape of a packet and its division.
    #[must_use]
    pub fn of(packet: &Packet<'_>, split: &Split<'_>, hasher: &FlowHasher) -> Self {
        Self::new(
            hasher.flow(packet),
            ecn::is_capable(packet.tos()),
            split.count(),
            split.segment_len(),
            split.last_len(),
        )
    }

    /// Bytes of some segments, with headers.
    fn len_of(&self, segments: Range<usize>) -> usize {
        let full = segments.len() * self.segment_len;
        match segments.end == self.segments && !segments.is_empty() {
            true => full - self.segment_len + self.last_len,
            false => full,
        }
    }
}

/// Segments that leave the queue together.
#[derive(Debug)]
#[must_use]
pub struct Portion<'a, T> {
    /// The packet.
    pub handle: Handle<'a, T>,
    /// The segments to send, at least one.
    pub segments: Range<usize>,
    /// True if the first of them has to be marked with congestion ([`crate::ecn::mark`]).
    pub is_marked: bool,
    /// Bytes of the segments, with headers.
    pub bytes: usize,
    /// The time that the packet has waited, in nanoseconds.
    pub waited: u64,
}

/// The packet of a portion.
#[derive(Debug)]
pub enum Handle<'a, T> {
    /// More segments of the packet are in the queue.
    Partial(&'a mut T),
    /// These are the last segments. The caller has the packet now.
    Last(T),
}

impl<T> Handle<'_, T> {
    /// Returns the packet.
    pub fn get(&mut self) -> &mut T {
        match self {
            Self::Partial(packet) => packet,
            Self::Last(packet) => packet,
        }
    }

    /// Returns the packet after its last segment.
    #[must_use]
    pub fn into_last(self) -> Option<T> {
        match self {
            Self::Partial(_) => None,
            Self::Last(packet) => Some(packet),
        }
    }
}

/// Counts of segments since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Segments that were marked with congestion.
    pub marked: u64,
    /// Segments that were dropped as a signal of congestion.
    pub dropped_as_signal: u64,
    /// Segments that were dropped because the queue was full.
    pub dropped_over_limit: u64,
}

/// The queue.
///
/// ```
/// use taupe_packet::queue::{FairQueue, Shape};
///
/// let mut queue = FairQueue::new();
/// let discard = &mut |packet| panic!("{packet} was dropped");
/// let download = Shape::new(1, true, 44, 1420, 900);
/// for i in 0..10 {
///     queue.enqueue(0, i, download, discard);
/// }
/// queue.dequeue(0, usize::MAX, discard);
/// queue.enqueue(0, 100, Shape::new(2, false, 1, 84, 84), discard);
/// let portion = queue.dequeue(0, usize::MAX, discard).expect("a packet");
/// assert_eq!(portion.handle.into_last(), Some(100));
/// ```
#[derive(Debug)]
pub struct FairQueue<T> {
    flows: FlowTable,
    waiting: Nodes<Waiting<T>>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    /// Bytes that wait.
    bytes: usize,
    /// Flows with packets.
    active: usize,
    /// The time since which the queue is over the limit that follows from the rate.
    over_since: Option<u64>,
    rate: SendRate,
    stats: QueueStats,
}

/// A packet in the queue.
#[derive(Debug)]
struct Waiting<T> {
    packet: T,
    shape: Shape,
    since: u64,
    /// Segments that have left.
    gone: usize,
}

impl<T> Waiting<T> {
    fn rest(&self) -> Range<usize> {
        self.gone..self.shape.segments
    }
}

/// The decision on the next segment of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Pass,
    Mark,
    Drop,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> FairQueue<T> {
    /// Returns an empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self {
            flows: FlowTable::new(),
            waiting: Nodes::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            bytes: 0,
            active: 0,
            over_since: None,
            rate: SendRate::new(),
            stats: QueueStats::default(),
        }
    }

    /// Returns true if no packet waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.len() == 0
    }

    /// Returns the number of packets that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes that may wait for longer than a second: those that are sent in
    /// 50 ms, within bounds.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.rate.sizes().limit
    }

    /// Returns the number of bytes that one call of [`Self::dequeue`] takes, unless they are less
    /// than a segment. One send should take no more, so that another flow can follow soon.
    #[must_use]
    pub fn portion(&self) -> usize {
        self.rate.sizes().portion
    }

    /// Returns the number of bytes that may wait in the send buffer behind this queue. With more,
    /// the queue would form there.
    #[must_use]
    pub fn in_flight_limit(&self) -> usize {
        self.rate.sizes().in_flight
    }

    /// Returns the time in nanoseconds to send some bytes at the measured rate, or at 1 Gbit/s before
    /// the first measurement.
    #[must_use]
    pub fn time_to_send(&self, bytes: usize) -> u64 {
        self.rate.time_for(bytes)
    }

    /// Returns the counts of marks and drops.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.stats
    }

    /// Adds a packet. If the queue is then over a limit, drops packets from the head of the longest
    /// list. A single packet is never dropped.
    ///
    /// The limits are 4 MiB, [`MAX_PACKETS`], and [`Self::limit`] after a second above it.
    pub fn enqueue(&mut self, now: u64, packet: T, shape: Shape, discard: &mut dyn FnMut(T)) {
        let bucket = self.flows.bucket(shape.flow);
        let flow = &mut self.flows[bucket];
        let bytes = shape.len_of(0..shape.segments);
        if flow.packets == 0 {
            self.active += 1;
        }
        flow.add(shape.flow, bytes);
        self.bytes += bytes;
        let waiting = Waiting {
            packet,
            shape,
            since: now,
            gone: 0,
        };
        self.waiting.push_back(&mut flow.fifo, waiting);
        if flow.listed == Listed::No {
            flow.listed = Listed::New;
            flow.credit = self.rate.sizes().quantum as i64;
            self.new.push_back(bucket);
        }
        while self.is_over_limit(now) {
            self.shed(discard);
        }
    }

    /// Takes the next portion of a packet: as many segments as fit into `room` bytes and
    /// [`Self::portion`], but at least one. Drops segments as signals of congestion.
    /// Returns `None` if the queue is empty.
    pub fn dequeue(
        &mut self,
        now: u64,
        room: usize,
        discard: &mut dyn FnMut(T),
    ) -> Option<Portion<'_, T>> {
        let (bucket, is_marked) = self.next_turn(now, discard)?;
        let flow = &mut self.flows[bucket];
        let head = self.waiting.front(&flow.fifo)?;
        let rest = head.rest();
        let fitting = room.min(self.rate.sizes().portion) / head.shape.segment_len;
        let segments = rest.start..rest.start + fitting.clamp(1, rest.len());
        let bytes = head.shape.len_of(segments.clone());
        let waited = now.saturating_sub(head.since);
        flow.credit -= bytes as i64;
        self.stats.marked += u64::from(is_marked);
        let handle = if segments.end < rest.end {
            flow.bytes -= bytes;
            self.bytes -= bytes;
            let head = self.waiting.front_mut(&flow.fifo)?;
            head.gone = segments.end;
            Handle::Partial(&mut head.packet)
        } else {
            Handle::Last(self.pop(bucket)?.packet)
        };
        Some(Portion {
            handle,
            segments,
            is_marked,
            bytes,
            waited,
        })
    }

    /// Records that `bytes` have been sent by `now`: from this the queue learns the rate. `ran_empty`
    /// is true if the send buffer behind the queue had become empty before.
    pub fn note_sent(&mut self, now: u64, bytes: usize, ran_empty: bool) {
        let waiting = !self.is_empty();
        self.rate.note(now, bytes, waiting, ran_empty);
    }

    /// Returns the flow whose turn it is, and true if its next segment has to be marked.
    fn next_turn(&mut self, now: u64, discard: &mut dyn FnMut(T)) -> Option<(u16, bool)> {
        if self.is_empty() {
            return None;
        }
        loop {
            let list = match self.new.is_empty() {
                true => &mut self.old,
                false => &mut self.new,
            };
            let bucket = *list.front()?;
            let flow = &mut self.flows[bucket];
            if flow.credit > 0 && flow.packets > 0 {
                match self.judge(now, bucket) {
                    Judgement::Pass => return Some((bucket, false)),
                    Judgement::Mark => return Some((bucket, true)),
                    Judgement::Drop => {
                        if self.drop_segment(bucket, discard) {
                            return Some((bucket, false));
                        }
                    }
                }
                if self.is_empty() {
                    return None;
                }
                continue;
            }
            list.pop_front();
            // A flow without packets leaves in the second round. If a new flow left at once, it
            // would be new again with its next packet, and come before all others for ever
            // (RFC 8290, section 4.2).
            if flow.credit <= 0 {
                flow.credit += self.rate.sizes().quantum as i64;
            } else if flow.listed == Listed::Old {
                flow.listed = Listed::No;
                continue;
            }
            flow.listed = Listed::Old;
            self.old.push_back(bucket);
        }
    }

    /// Decides whether the next segment of a flow carries a signal of congestion.
    fn judge(&mut self, now: u64, bucket: u16) -> Judgement {
        let flow = &mut self.flows[bucket];
        let Some(head) = self.waiting.front(&flow.fifo) else {
            return Judgement::Pass;
        };
        // The queue of a flow cannot be shorter than one packet, nor is it worth a signal with two
        // segments (on a link of 1 Mbit/s, these take longer than the target).
        let few = flow.packets == 1 || flow.bytes <= 2 * head.shape.segment_len;
        let waited = now.saturating_sub(head.since);
        let is_standing = flow.codel.signals(now, waited, few);
        // Half of a fair share is large: if all flows are alike, all of them are too fast.
        let has_large_share = (2 * self.active).saturating_mul(flow.bytes) >= self.bytes;
        // Packets that arrived before the last signal cannot show the reaction to it, because the
        // sender learns of a signal only when the packet behind it has arrived.
        let is_pressed = self.bytes > self.rate.sizes().pressure
            && has_large_share
            && !few
            && head.since > flow.signalled_at;
        if !is_standing && !is_pressed {
            return Judgement::Pass;
        }
        flow.signalled_at = now;
        match head.shape.is_ecn_capable {
            true => Judgement::Mark,
            false => Judgement::Drop,
        }
    }

    /// Drops the next segment of a flow. Returns true if its packet has more.
    fn drop_segment(&mut self, bucket: u16, discard: &mut dyn FnMut(T)) -> bool {
        self.stats.dropped_as_signal += 1;
        let flow = &mut self.flows[bucket];
        let Some(head) = self.waiting.front_mut(&flow.fifo) else {
            return false;
        };
        if head.rest().len() > 1 {
            let bytes = head.shape.len_of(head.gone..head.gone + 1);
            head.gone += 1;
            flow.bytes -= bytes;
            self.bytes -= bytes;
            return true;
        }
        if let Some(head) = self.pop(bucket) {
            discard(head.packet);
        }
        false
    }

    fn is_over_limit(&mut self, now: u64) -> bool {
        if self.bytes > self.limit() {
            self.over_since.get_or_insert(now);
        } else {
            self.over_since = None;
        }
        let since = self.over_since;
        let is_late = since.is_some_and(|since| now.saturating_sub(since) >= GRACE);
        let is_over = is_late || self.bytes > MAX_LIMIT || self.len() > MAX_PACKETS;
        is_over && self.len() > 1
    }

    /// Drops packets from the head of the longest list, where a sender learns soonest of the loss.
    fn shed(&mut self, discard: &mut dyn FnMut(T)) {
        let has_too_many = self.len() > MAX_PACKETS;
        let length = |flow: &Flow| match has_too_many {
            true => flow.packets,
            false => flow.bytes,
        };
        let listed = self.new.iter().chain(&self.old).copied();
        let Some(longest) = listed.max_by_key(|it| length(&self.flows[*it])) else {
            return;
        };
        let flow = &self.flows[longest];
        let (most_bytes, most_packets) = (flow.bytes / 2, flow.packets / 2);
        let mut shed = 0;
        for _ in 0..SHED_PACKETS.min(most_packets.max(1)) {
            let Some(head) = self.pop(longest) else {
                return;
            };
            let rest = head.rest();
            shed += head.shape.len_of(rest.clone());
            self.stats.dropped_over_limit += rest.len() as u64;
            discard(head.packet);
            if shed >= SHED_BYTES.min(most_bytes) {
                return;
            }
        }
    }

    /// Removes the first packet of a flow.
    fn pop(&mut self, bucket: u16) -> Option<Waiting<T>> {
        let flow = &mut self.flows[bucket];
        let head = self.waiting.pop_front(&mut flow.fifo)?;
        let bytes = head.shape.len_of(head.rest());
        flow.remove(head.shape.flow, bytes);
        self.bytes -= bytes;
        self.active -= usize::from(flow.packets == 0);
        Some(head)
    }
}

#[cfg(test)]
mod tests;

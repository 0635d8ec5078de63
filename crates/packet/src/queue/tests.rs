//! Rules of the queue, one by one.

mod link;
mod properties;

use super::*;
use crate::{testing::Spec, virtio::VirtioHeader};

const MS: u64 = 1_000_000;

/// A full super-packet.
const SEGMENTS: usize = 44;
const SEGMENT: usize = 1420;
const LEN: usize = SEGMENTS * SEGMENT;

/// Returns the shape of a full super-packet.
fn bulk(flow: u64, is_ecn_capable: bool) -> Shape {
    Shape::new(flow, is_ecn_capable, SEGMENTS, SEGMENT, SEGMENT)
}

/// Returns the shape of a short packet.
fn short(flow: u64) -> Shape {
    Shape::new(flow, false, 1, 84, 84)
}

/// A queue with numbers as packets.
#[derive(Default)]
struct Tested {
    queue: FairQueue<usize>,
    dropped: Vec<usize>,
    now: u64,
}

impl Tested {
    /// Returns a queue that has measured a rate, in bits per second.
    fn at_rate(bits: u64) -> Self {
        let mut tested = Self::default();
        tested.push(0, short(u64::MAX));
        tested.queue.note_sent(0, 0, false);
        tested.now = 10 * MS;
        tested.queue.note_sent(10 * MS, bits as usize / 800, false);
        assert_eq!(tested.pop(usize::MAX), Some((0, 0..1, false)));
        tested
    }

    fn push(&mut self, packet: usize, shape: Shape) {
        let dropped = &mut self.dropped;
        let discard = &mut |packet| dropped.push(packet);
        self.queue.enqueue(self.now, packet, shape, discard);
    }

    /// Returns the packet, the segments and the mark of the next portion.
    fn pop(&mut self, room: usize) -> Option<(usize, Range<usize>, bool)> {
        let dropped = &mut self.dropped;
        let discard = &mut |packet| dropped.push(packet);
        let mut portion = self.queue.dequeue(self.now, room, discard)?;
        let packet = *portion.handle.get();
        Some((packet, portion.segments, portion.is_marked))
    }

    /// Returns the next packet, which leaves undivided.
    fn pop_packet(&mut self) -> Option<usize> {
        self.pop(usize::MAX).map(|(packet, ..)| packet)
    }
}

#[test]
fn packets_of_one_flow_leave_in_order() {
    let mut tested = Tested::default();
    for i in 0..20 {
        tested.push(i, bulk(1, false));
    }
    assert_eq!((tested.queue.len(), tested.queue.bytes()), (20, 20 * LEN));
    for i in 0..20 {
        assert_eq!(tested.pop(usize::MAX), Some((i, 0..SEGMENTS, false)));
    }
    assert_eq!(tested.pop_packet(), None);
    assert_eq!((tested.queue.len(), tested.queue.bytes()), (0, 0));
}

#[test]
fn flows_take_turns() {
    let mut tested = Tested::default();
    for i in 0..12 {
        tested.push(i, bulk((i / 4) as u64, false));
    }
    let out: Vec<_> = std::iter::from_fn(|| tested.pop_packet()).collect();
    let turns: Vec<_> = out.iter().map(|packet| packet / 4).collect();
    for turn in turns.chunks(3) {
        let mut turn = turn.to_vec();
        turn.sort_unstable();
        assert_eq!(turn, [0, 1, 2], "{out:?}");
    }
}

#[test]
fn flows_share_bytes_and_not_packets() {
    let mut tested = Tested::at_rate(100_000_000);
    let lengths = [1400, 100];
    for _ in 0..400 {
        for (flow, length) in lengths.into_iter().enumerate() {
            tested.push(flow, Shape::new(flow as u64, true, 1, length, length));
        }
    }
    let mut bytes = [0; 2];
    while bytes[1] < 30_000 {
        let flow = tested.pop_packet().expect("a packet");
        bytes[flow] += lengths[flow];
    }
    assert!(bytes[0].abs_diff(bytes[1]) <= 6250, "{bytes:?}");
}

#[test]
fn a_sparse_flow_comes_first() {
    let mut tested = Tested::default();
    for i in 0..20 {
        tested.push(i, bulk(i as u64 % 2, false));
    }
    // Both flows had their first turn.
    assert_eq!(
        [tested.pop_packet(), tested.pop_packet()],
        [Some(0), Some(1)]
    );
    for round in 100..105 {
        tested.push(round, short(7));
        assert_eq!(tested.pop_packet(), Some(round));
        // In the meantime each of the others has a turn or two.
        for _ in 0..3 {
            assert!(tested.pop_packet().is_some_and(|it| it < 20));
        }
    }
}

#[test]
fn a_flow_cannot_pretend_to_be_sparse() {
    let mut tested = Tested::default();
    for i in 0..8 {
        tested.push(i, bulk(1, false));
    }
    // The other flow has one long packet in the queue at any time.
    let mut own = 0;
    tested.push(100, bulk(2, false));
    for _ in 0..14 {
        if tested.pop_packet() == Some(100) {
            own += 1;
            tested.push(100, bulk(2, false));
        }
    }
    assert!((6..=8).contains(&own), "{own} of 14");
}

#[test]
fn a_slow_link_gets_portions() {
    // 500 µs, but a segment at least, and everything from 1 Gbit/s on.
    for (bits, segments) in [
        (1_000_000, 1),
        (10_000_000, 1),
        (100_000_000, 4),
        (900_000_000, 39),
        (1_000_000_000, 44),
    ] {
        let mut tested = Tested::at_rate(bits);
        tested.push(1, bulk(1, false));
        assert_eq!(tested.pop(usize::MAX), Some((1, 0..segments, false)));
        if segments == SEGMENTS {
            continue;
        }
        // Another flow comes between.
        tested.push(2, short(2));
        let others = [tested.pop_packet(), tested.pop_packet()];
        assert!(others.contains(&Some(2)), "{bits}: {others:?}");
        let mut sent = SEGMENTS.min(2 * segments);
        while let Some((packet, range, _)) = tested.pop(usize::MAX) {
            assert_eq!((packet, range.start), (1, sent));
            sent = range.end;
        }
        assert_eq!(sent, SEGMENTS);
        assert_eq!(tested.queue.bytes(), 0);
    }
}

#[test]
fn a_portion_fits_into_the_room() {
    let mut tested = Tested::default();
    tested.push(1, Shape::new(1, false, 10, 1000, 500));
    assert_eq!(tested.pop(3999), Some((1, 0..3, false)));
    assert_eq!(tested.queue.bytes(), 6500);
    assert_eq!(tested.pop(0), Some((1, 3..4, false)), "one at least");
    // The last segment is shorter, but counts as the others here.
    assert_eq!(tested.pop(5500), Some((1, 4..9, false)));
    assert_eq!(tested.queue.bytes(), 500);
    assert_eq!(tested.pop(5500), Some((1, 9..10, false)));
}

/// Lets a flow have a standing queue for 200 ms.
fn stand(is_ecn_capable: bool, depth: usize) -> (Tested, Vec<(usize, Range<usize>, bool)>) {
    let mut tested = Tested::at_rate(100_000_000);
    for i in 0..depth {
        tested.push(i, bulk(1, is_ecn_capable));
    }
    let mut out = Vec::new();
    let mut next = depth;
    let end = tested.now + 200 * MS;
    while tested.now < end {
        tested.now += MS / 2;
        let portion = tested.pop(usize::MAX).expect("a portion");
        if portion.1.end == SEGMENTS {
            tested.push(next, bulk(1, is_ecn_capable));
            next += 1;
        }
        out.push(portion);
    }
    (tested, out)
}

#[test]
fn a_standing_queue_is_marked_if_the_sender_supports_that() {
    let (tested, out) = stand(true, 2);
    let marks = out.iter().filter(|(.., is_marked)| *is_marked).count();
    assert_eq!(marks, 1, "after 100 ms");
    let stats = QueueStats {
        marked: 1,
        ..QueueStats::default()
    };
    assert_eq!(tested.queue.stats(), stats);
    assert!(tested.dropped.is_empty());
}

#[test]
fn a_standing_queue_loses_one_segment_otherwise() {
    let (tested, out) = stand(false, 2);
    let stats = QueueStats {
        dropped_as_signal: 1,
        ..QueueStats::default()
    };
    assert_eq!(tested.queue.stats(), stats);
    assert!(tested.dropped.is_empty(), "the other segments have left");
    let sent: usize = out.iter().map(|(_, range, _)| range.len()).sum();
    let (_, last, _) = out.last().expect("portions");
    assert_eq!((sent + 1) % SEGMENTS, last.end % SEGMENTS);
}

#[test]
fn one_super_packet_is_not_a_queue() {
    for is_ecn_capable in [false, true] {
        let (tested, _) = stand(is_ecn_capable, 1);
        assert_eq!(tested.queue.stats(), QueueStats::default());
    }
}

#[test]
fn a_long_queue_is_marked_at_once() {
    let mut tested = Tested {
        now: MS,
        ..Tested::default()
    };
    let most = tested.queue.rate.sizes().pressure / LEN;
    for i in 0..=most {
        tested.push(i, bulk(1, true));
    }
    tested.push(1000, short(2));
    assert_eq!(tested.pop(usize::MAX), Some((0, 0..SEGMENTS, true)));
    tested.push(most + 1, bulk(1, true));
    assert_eq!(tested.pop_packet(), Some(1000), "the share is too small");
    // Further packets of this burst cannot show how the sender reacts.
    tested.now += MS;
    for i in 1..=most + 1 {
        tested.push(most + 1 + i, bulk(1, true));
        assert_eq!(tested.pop(usize::MAX), Some((i, 0..SEGMENTS, false)));
    }
    tested.push(5000, bulk(1, true));
    let next = most + 2;
    assert_eq!(tested.pop(usize::MAX), Some((next, 0..SEGMENTS, true)));
}

/// The limit that follows from the rate gives senders time to react. The bound of memory does not.
#[test]
fn the_queue_may_be_long_for_a_second() {
    let mut tested = Tested::at_rate(10_000_000);
    let (limit, most) = (tested.queue.limit(), rate::MAX_LIMIT);
    assert!(4 * limit < most);
    for i in 0..most / LEN {
        tested.push(i, bulk(1, true));
    }
    assert!(tested.dropped.is_empty());
    tested.push(100, bulk(1, true));
    assert_eq!(tested.dropped, [0]);
    tested.now += GRACE - 1;
    tested.push(101, short(1));
    assert_eq!(tested.dropped, [0]);
    tested.now += 1;
    tested.push(102, short(1));
    assert!(tested.queue.bytes() <= limit);
}

#[test]
fn the_longest_list_is_shortened_at_the_limit() {
    let mut tested = Tested::default();
    let fitting = tested.queue.limit() / LEN;
    for i in 0..3 {
        tested.push(1000 + i, short(2));
    }
    for i in 0..2 * fitting {
        tested.push(i, bulk(1, true));
        assert!(tested.queue.bytes() <= tested.queue.limit());
    }
    let dropped: Vec<_> = (0..tested.dropped.len()).collect();
    assert_eq!(tested.dropped, dropped, "the oldest of the download");
    let segments = (dropped.len() * SEGMENTS) as u64;
    assert_eq!(tested.queue.stats().dropped_over_limit, segments);
    assert_eq!(tested.queue.len(), 3 + 2 * fitting - dropped.len());
}

#[test]
fn many_short_packets_are_dropped_together() {
    let mut tested = Tested::default();
    tested.push(1_000_000, bulk(1, false));
    tested.push(1_000_001, bulk(1, false));
    for i in 0..MAX_PACKETS {
        tested.push(i, Shape::new(2, false, 1, 40, 40));
        assert!(tested.queue.len() <= MAX_PACKETS);
    }
    // Not the long packets, though they are more bytes.
    assert_eq!(tested.dropped, (0..SHED_PACKETS).collect::<Vec<_>>());
}

#[test]
fn a_single_packet_is_not_dropped() {
    let mut tested = Tested::at_rate(1_000_000);
    let long = Shape::new(1, false, 100, 9000, 9000);
    assert!(long.len_of(0..100) > tested.queue.limit());
    tested.push(1, long);
    tested.now += GRACE;
    tested.push(2, long);
    assert_eq!(tested.dropped, [1]);
    tested.now += 2 * GRACE;
    assert!(tested.pop_packet().is_some());
}

#[test]
fn a_shape_has_the_packet_s_segments() {
    let spec = Spec {
        tos: 2,
        payload: vec![0; 1000],
        ..Spec::default()
    };
    let hasher = FlowHasher::new(&[1; 16]);
    let (header, bytes) = spec.super_packet(300);
    let packet = Packet::parse(&bytes).expect("a packet");
    let split = Split::new(header, &bytes).expect("a super-packet");
    let shape = Shape::of(&packet, &split, &hasher);
    let flow = hasher.flow(&packet);
    assert_eq!(shape, Shape::new(flow, true, 4, 340, 140));
    assert_eq!(shape.len_of(0..4), 3 * 340 + 140);
    assert_eq!((shape.len_of(1..3), shape.len_of(4..4)), (680, 0));
    let whole = Spec { tos: 0, ..spec }.bytes();
    let packet = Packet::parse(&whole).expect("a packet");
    let split = Split::new(VirtioHeader::default(), &whole).expect("a packet");
    let shape = Shape::of(&packet, &split, &hasher);
    assert_eq!(shape, Shape::new(flow, false, 1, 1040, 1040));
}

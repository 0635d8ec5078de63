//! Properties that hold for any traffic.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Push(Shape),
    /// Room in bytes.
    Pop(usize),
    /// Nanoseconds.
    Wait(u64),
    Sent(usize, bool),
}

/// Flows of which many share a set of buckets.
fn any_flow() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4, (0u64..20).prop_map(|i| i * 512), any::<u64>()]
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let lengths = (1usize..=45, 1usize..=1460, 1usize..=1460);
    (any_flow(), any::<bool>(), lengths).prop_map(|(flow, is_ecn_capable, lengths)| {
        let (segments, segment_len, last_len) = lengths;
        let last_len = match segments {
            1 => segment_len,
            _ => last_len.min(segment_len),
        };
        Shape::new(flow, is_ecn_capable, segments, segment_len, last_len)
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any_shape().prop_map(Step::Push),
        3 => prop_oneof![Just(usize::MAX), 0usize..20_000].prop_map(Step::Pop),
        1 => (0u64..60 * MS).prop_map(Step::Wait),
        1 => (0usize..200_000, any::<bool>()).prop_map(|(bytes, empty)| Step::Sent(bytes, empty)),
    ]
}

/// A queue, and all that is known about its packets.
#[derive(Default)]
struct Checked {
    tested: Tested,
    shapes: Vec<Shape>,
    /// The first segment that has not left, by packet.
    next: Vec<usize>,
    done: HashSet<usize>,
    /// The packet that left last, by flow.
    last: HashMap<u64, usize>,
    marked: u64,
    skipped: u64,
}

impl Checked {
    fn take(&mut self, step: &Step) {
        match *step {
            Step::Push(shape) => {
                let packet = self.shapes.len();
                self.shapes.push(shape);
                self.next.push(0);
                self.tested.push(packet, shape);
            }
            Step::Pop(room) => {
                self.pop(room);
            }
            Step::Wait(time) => self.tested.now += time,
            Step::Sent(bytes, ran_empty) => {
                let Tested { queue, now, .. } = &mut self.tested;
                queue.note_sent(*now, bytes, ran_empty);
            }
        }
        self.note_dropped();
        let queue = &self.tested.queue;
        assert!(queue.bytes() <= rate::MAX_LIMIT || queue.len() <= 1);
        assert!(queue.len() <= MAX_PACKETS);
        assert!(queue.waiting.stored() <= MAX_PACKETS + 1);
        assert!(queue.new.len() + queue.old.len() <= flow::BUCKETS);
    }

    fn pop(&mut self, room: usize) -> bool {
        let portion = self.tested.queue.portion();
        let popped = self.tested.pop(room);
        self.note_dropped();
        let Some((packet, segments, is_marked)) = popped else {
            assert!(self.tested.queue.is_empty());
            return false;
        };
        let shape = self.shapes[packet];
        assert!(!self.done.contains(&packet));
        assert!(!segments.is_empty() && segments.end <= shape.segments);
        assert!(segments.len() == 1 || segments.len() * shape.segment_len <= room.min(portion));
        assert!(segments.start >= self.next[packet], "each segment once");
        self.skipped += (segments.start - self.next[packet]) as u64;
        self.next[packet] = segments.end;
        let last = self.last.insert(shape.flow, packet);
        assert!(last.is_none_or(|last| last <= packet), "order in the flow");
        assert!(!is_marked || shape.is_ecn_capable);
        self.marked += u64::from(is_marked);
        if segments.end == shape.segments {
            self.done.insert(packet);
        }
        true
    }

    fn note_dropped(&mut self) {
        for packet in self.tested.dropped.drain(..) {
            assert!(self.done.insert(packet), "a packet ends once");
            let rest = self.shapes[packet].segments - self.next[packet];
            self.skipped += rest as u64;
        }
    }
}

proptest! {
    #[test]
    fn every_segment_leaves_once_in_order_or_is_counted(
        steps in prop::collection::vec(any_step(), 0..400),
    ) {
        let mut checked = Checked::default();
        for step in &steps {
            checked.take(step);
        }
        while checked.pop(usize::MAX) {}
        prop_assert_eq!(checked.done.len(), checked.shapes.len());
        let queue = &checked.tested.queue;
        prop_assert_eq!((queue.len(), queue.bytes(), queue.active), (0, 0, 0));
        let stats = queue.stats();
        prop_assert_eq!(stats.marked, checked.marked);
        prop_assert_eq!(stats.dropped_as_signal + stats.dropped_over_limit, checked.skipped);
    }

    /// A flow whose packet finds none of its own in the queue waits for one portion, however much
    /// others have there.
    #[test]
    fn a_sparse_packet_leaves_next(
        others in prop::collection::vec(any_shape(), 1..60),
        bits in 1_000_000u64..10_000_000_000,
    ) {
        let mut tested = Tested::at_rate(bits);
        for (i, shape) in others.iter().enumerate() {
            tested.push(i, *shape);
        }
        // Every flow has had its first turn.
        while !tested.queue.new.is_empty() && tested.pop_packet().is_some() {}
        let sparse = 0xdead_beef_0000_0000 + 300;
        tested.push(usize::MAX, short(sparse));
        prop_assert_eq!(tested.pop_packet(), Some(usize::MAX));
    }

    /// No flow that always has packets gets ahead of another by more than a few portions.
    #[test]
    fn bulk_flows_get_equal_shares(
        lengths in prop::collection::vec((1usize..=45, 40usize..=1460), 2..6),
        bits in 500_000_000u64..2_000_000_000,
    ) {
        let mut tested = Tested::at_rate(bits);
        let shape = |flow: usize| {
            let (segments, length) = lengths[flow];
            Shape::new(flow as u64, true, segments, length, length)
        };
        let mut bytes = vec![0; lengths.len()];
        for _ in 0..3 {
            (0..lengths.len()).for_each(|flow| tested.push(flow, shape(flow)));
        }
        for _ in 0..2000 {
            let (flow, range, _) = tested.pop(usize::MAX).expect("a portion");
            bytes[flow] += range.len() * lengths[flow].1;
            if range.end == lengths[flow].0 {
                tested.push(flow, shape(flow));
            }
        }
        let [least, most] = [bytes.iter().min(), bytes.iter().max()];
        let portion = tested.queue.portion();
        let spread = most.zip(least).map(|(most, least)| most - least);
        prop_assert!(spread.is_some_and(|it| it <= 3 * portion), "{bytes:?}");
    }
}

use std::collections::BTreeSet;

use proptest::prelude::*;
use taupe_crypto::{PORTABLE, SharedSecret};

use super::counters::BLOCK;
use super::*;
use crate::limits::{REJECT_AFTER_MESSAGES, REKEY_AFTER_MESSAGES};
use crate::time::Tai64N;

fn lanes() -> impl Strategy<Value = Lanes> {
    prop::sample::select(Lanes::ALL.to_vec())
}

fn several_lanes() -> impl Strategy<Value = Lanes> {
    prop::sample::select(Lanes::ALL[1..].to_vec())
}

/// Returns a number of any magnitude.
fn magnitude() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(number, shift)| number >> shift)
}

/// Takes all counters of a reservation.
fn take(counters: &mut LaneCounters, lane: LaneId, count: u64) -> Option<Vec<u64>> {
    let mut reserved = counters.reserve(lane, count)?;
    let taken: Vec<u64> = (0..count).map(|_| reserved.run.take()).collect();
    assert_eq!(taken.iter().max().map(|last| last + 1), Some(reserved.end));
    Some(taken)
}

proptest! {
    #[test]
    fn each_counter_has_one_position(lanes in lanes(), counter in magnitude()) {
        let (lane, at) = position(lanes, counter);
        prop_assert!(lane.number() < lanes.count());
        prop_assert_eq!(counters::counter(lanes, lane, at), Some(counter));
    }

    #[test]
    fn each_position_has_one_counter(
        lanes in lanes(),
        number in any::<prop::sample::Index>(),
        at in magnitude(),
    ) {
        let lane = LaneId::new(number.index(lanes.count())).expect("below 16");
        // A position has no counter if the counter does not fit in 64 bits.
        let counter = counters::counter(lanes, lane, at);
        prop_assert_eq!(counter.is_none(), at.leading_zeros() < lanes.log2());
        if let Some(counter) = counter {
            prop_assert_eq!(position(lanes, counter), (lane, at));
        }
    }

    #[test]
    fn no_two_reservations_share_a_counter(
        lanes in lanes(),
        start in magnitude(),
        batches in prop::collection::vec((any::<prop::sample::Index>(), 1..150_u64), 1..30),
    ) {
        let mut counters = LaneCounters::new(lanes);
        counters.raise(start);
        let mut used = BTreeSet::new();
        let mut last = [None; 16];
        let mut newest = 0;
        for (number, count) in batches {
            let lane = LaneId::new(number.index(lanes.count())).expect("below 16");
            let Some(taken) = take(&mut counters, lane, count) else {
                prop_assert!(start > REJECT_AFTER_MESSAGES - (1 << 20));
                continue;
            };
            for counter in taken {
                prop_assert!(counter < REJECT_AFTER_MESSAGES);
                prop_assert!(used.insert(counter), "counter {} twice", counter);
                prop_assert!(lanes == Lanes::One || position(lanes, counter).0 == lane);
                // The counters of a lane never decrease, even if it leaves out blocks.
                let before = last[lane.number()].replace(counter);
                prop_assert!(before < Some(counter));
                // No block is older than the newest by more than the slack.
                let block = counter / BLOCK;
                newest = newest.max(block);
                prop_assert!(block + lanes.count() as u64 >= newest);
            }
        }
    }

    #[test]
    fn consecutive_counters_have_no_gaps(
        batches in prop::collection::vec((0..16_usize, 1..300_u64), 1..60),
    ) {
        let mut counters = LaneCounters::new(Lanes::One);
        let mut all = Vec::new();
        for (lane, count) in batches {
            let lane = LaneId::new(lane).expect("below 16");
            all.extend(take(&mut counters, lane, count).expect("far from the limit"));
        }
        prop_assert!(all.iter().copied().eq(0..all.len() as u64));
    }

    #[test]
    fn an_index_says_its_class(
        lanes in several_lanes(),
        over in lanes(),
        base in 0..16_u64,
        secret: u32,
        random: u32,
        tag: u16,
        counter: u64,
    ) {
        let steering = Steering::new(lanes, &mut |bytes: &mut [u8]| {
            bytes.copy_from_slice(&secret.to_le_bytes());
        });
        let base = lanes.wrap(base);
        let [third, fourth] = steering.class_bytes(over, base, random);
        let [first, second] = tag.to_be_bytes();
        let index = u32::from_le_bytes([first, second, third, fourth]);
        let width = over.min(lanes).count() as u64;
        let expected = (base.number() as u64 + counter / 64 % width) % lanes.count() as u64;
        prop_assert_eq!(steering.lane_of(index, counter).number() as u64, expected);
        prop_assert_eq!(steering.spread(index).width(), over.min(lanes));
    }

    #[test]
    fn only_the_same_handshake_reads_a_tag(
        lanes in several_lanes(),
        secret: [u8; 32],
        timestamp: [u8; 12],
        class: [u8; 2],
    ) {
        let secret = SharedSecret::new(secret);
        let tag = |timestamp| IndexTag { static_static: &secret, timestamp: Tai64N(timestamp) };
        let index = tag(timestamp).index(&PORTABLE, Sender::Initiator, lanes, class);
        let read = tag(timestamp).lanes(&PORTABLE, Sender::Initiator, index);
        prop_assert_eq!(read, lanes);
        let [_, _, third, fourth] = index.to_le_bytes();
        prop_assert_eq!([third, fourth], class);
    }
}

#[test]
fn the_last_counters_of_a_lane() {
    for lanes in Lanes::ALL {
        let mut counters = LaneCounters::new(lanes);
        counters.raise(REJECT_AFTER_MESSAGES);
        if lanes == Lanes::One {
            assert!(counters.is_exhausted());
            continue;
        }
        // The limit is 63 above the start of a block, so that counters of one lane remain.
        let mut taken = Vec::new();
        for lane in lanes.ids() {
            while let Some(counter) = take(&mut counters, lane, 1) {
                taken.extend(counter);
            }
        }
        assert_eq!(
            taken.iter().max(),
            Some(&(REJECT_AFTER_MESSAGES - 1)),
            "{lanes:?}"
        );
        for lane in lanes.ids() {
            assert!(counters.reserve(lane, 1).is_none());
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_reserves_nothing() {
    for lanes in Lanes::ALL {
        let mut counters = LaneCounters::new(lanes);
        counters.raise(REJECT_AFTER_MESSAGES - 64 * lanes.count() as u64);
        assert!(counters.reserve(LaneId::FIRST, u64::MAX).is_none());
        assert!(counters.reserve(LaneId::FIRST, 10_000).is_none());
        let before = counters.next();
        assert!(counters.reserve(LaneId::FIRST, 1).is_some());
        assert!(counters.next() >= before);
    }
}

#[test]
fn a_reservation_ends_above_its_greatest_counter() {
    for lanes in Lanes::ALL {
        let mut counters = LaneCounters::new(lanes);
        counters.raise(REKEY_AFTER_MESSAGES - 1);
        let ends = lanes.ids().map(|lane| {
            let reserved = counters.reserve(lane, 65).expect("below the limit");
            reserved.end
        });
        assert!(ends.max() > Some(REKEY_AFTER_MESSAGES), "{lanes:?}");
    }
}

/// One in 16,384 random indices looks as if it had a tag.
#[test]
fn few_random_indices_pass_for_tags() {
    let secret = SharedSecret::new([7; 32]);
    let tag = IndexTag {
        static_static: &secret,
        timestamp: Tai64N([1; 12]),
    };
    let found = (0..1 << 17).filter(|index: &u32| {
        let index = index.wrapping_mul(0x9e37_79b1);
        tag.lanes(&PORTABLE, Sender::Responder, index) > Lanes::One
    });
    let found = found.count();
    assert!((1..30).contains(&found), "{found}, expected 8");
}

#[test]
fn numbers_of_lanes() {
    for lanes in Lanes::ALL {
        assert_eq!(Lanes::new(lanes.count()), Some(lanes));
        assert_eq!(Lanes::at_most(lanes.count()), lanes);
        assert_eq!(lanes.ids().len(), lanes.count());
    }
    assert_eq!([0, 3, 32].map(Lanes::new), [None; 3]);
    assert_eq!(
        [0, 3, 15, 1_000].map(Lanes::at_most),
        [Lanes::One, Lanes::Two, Lanes::Eight, Lanes::Sixteen]
    );
    assert_eq!(LaneId::new(15).map(LaneId::number), Some(15));
    assert_eq!(LaneId::new(16), None);
}

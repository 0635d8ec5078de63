use proptest::prelude::*;

use super::*;
use crate::translate::testing::{in_fragments, set_v4_checksum, socket, udp};

const LIMIT: usize = 4 << 20;
const START: Instant = Instant(1_000_000_000_000);
const ENDS: [[&str; 2]; 2] = [["203.0.113.5", "10.66.0.2"], ["2001:db8:f::5", "fd66::2"]];

fn packet(ends: [&str; 2], payload: &[u8]) -> Vec<u8> {
    let [from, to] = ends.map(|ip| socket(ip, 53));
    udp(from, to, payload)
}

/// Returns the packet as it is after reassembly.
fn whole(mut packet: Vec<u8>, id: u16) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        packet[6..8].fill(0);
        set_v4_checksum(&mut packet);
    }
    packet
}

fn take(
    reassembly: &mut Reassembly,
    now: Instant,
    fragment: &[u8],
) -> Result<Option<Vec<u8>>, Inconsistent> {
    let taken = reassembly.add_fragment(now, fragment);
    check(reassembly);
    taken
}

/// Checks that the recorded costs match the stored pieces.
fn check(reassembly: &Reassembly) {
    let cost = |parts: &IncompletePacket| {
        let pieces = parts.pieces.values().map(|piece| piece.len() + OVERHEAD);
        OVERHEAD + pieces.sum::<usize>() + parts.head.as_ref().map_or(0, Vec::len)
    };
    let costs = reassembly.incomplete.values().map(cost);
    assert_eq!(reassembly.cost, costs.sum::<usize>());
    assert!(reassembly.cost <= LIMIT);
    assert_eq!(reassembly.order.len(), reassembly.incomplete.len());
}

#[test]
fn given_up_after_thirty_seconds() {
    for ends in ENDS {
        let sent = packet(ends, &[7; 100]);
        let [first, second] = &in_fragments(&sent, 64, 1)[..] else {
            panic!("two fragments");
        };
        let last_moment = START + TIMEOUT - Duration::from_nanos(1);
        let mut reassembly = Reassembly::new(LIMIT);
        assert_eq!(take(&mut reassembly, START, first), Ok(None));
        let together = take(&mut reassembly, last_moment, second);
        assert_eq!(together, Ok(Some(whole(sent, 1))));
        assert_eq!(take(&mut reassembly, START, first), Ok(None));
        assert_eq!(take(&mut reassembly, START + TIMEOUT, second), Ok(None));
        assert_eq!(reassembly.incomplete.len(), 1);
    }
}

#[test]
fn who_overlaps_or_contradicts_ends_the_packet() {
    for ends in ENDS {
        let fragments = in_fragments(&packet(ends, &[7; 200]), 64, 1);
        let others = in_fragments(&packet(ends, &[8; 200]), 80, 1);
        let longer = in_fragments(&packet(ends, &[7; 300]), 64, 1);
        for (held, strange) in [
            // Different contents at the beginning, in the middle and at the end.
            (&fragments[0], &others[0]),
            (&fragments[1], &others[1]),
            (&fragments[3], &longer[3]),
            (&fragments[3], &longer[4]),
            (&longer[4], &fragments[3]),
        ] {
            let mut reassembly = Reassembly::new(LIMIT);
            assert_eq!(take(&mut reassembly, START, held), Ok(None));
            let refused = take(&mut reassembly, START, strange);
            assert_eq!(refused, Err(Inconsistent));
            assert!(reassembly.incomplete.is_empty());
        }
        // A duplicate is no contradiction.
        let mut reassembly = Reassembly::new(LIMIT);
        for fragment in [0, 1, 1, 0, 2] {
            assert_eq!(take(&mut reassembly, START, &fragments[fragment]), Ok(None));
        }
        assert!(matches!(
            take(&mut reassembly, START, &fragments[3]),
            Ok(Some(_))
        ));
    }
}

/// Packets of two protocols between the same hosts may have the same identification (RFC 791).
#[test]
fn protocols_have_identifications_of_their_own() {
    let sent = packet(ENDS[0], &[7; 100]);
    let mut other = packet(ENDS[0], &[8; 100]);
    // A protocol number for experiments (RFC 3692).
    other[9] = 253;
    set_v4_checksum(&mut other);
    let [fragments, others] = [&sent, &other].map(|packet| in_fragments(packet, 64, 1));
    let mut reassembly = Reassembly::new(LIMIT);
    assert_eq!(take(&mut reassembly, START, &fragments[0]), Ok(None));
    assert_eq!(take(&mut reassembly, START, &others[0]), Ok(None));
    let together = take(&mut reassembly, START, &fragments[1]);
    assert_eq!(together, Ok(Some(whole(sent, 1))));
    let together = take(&mut reassembly, START, &others[1]);
    assert_eq!(together, Ok(Some(whole(other, 1))));
}

#[test]
fn pieces_that_no_packet_has() {
    for ends in ENDS {
        let sent = packet(ends, &[7; 200]);
        let mut reassembly = Reassembly::new(LIMIT);
        // Not a multiple of eight bytes, with more fragments to follow.
        let odd = &in_fragments(&sent, 60, 1)[0];
        assert_eq!(take(&mut reassembly, START, odd), Err(Inconsistent));
        // Beyond the longest packet: offset 65,528 with 16 bytes.
        let mut far = in_fragments(&sent, 16, 1).pop().unwrap();
        let at = if far[0] >> 4 == 4 { 6 } else { 42 };
        let word = if at == 6 { 0x1fff } else { 0xfff8_u16 };
        far[at..at + 2].copy_from_slice(&word.to_be_bytes());
        assert_eq!(take(&mut reassembly, START, &far), Err(Inconsistent));
        assert!(reassembly.incomplete.is_empty());
    }
}

#[test]
fn the_oldest_give_way() {
    let mut reassembly = Reassembly::new(LIMIT);
    let first = |id| in_fragments(&packet(ENDS[0], &[7; 1400]), 1024, id).swap_remove(0);
    for id in 0..5000 {
        assert_eq!(take(&mut reassembly, START, &first(id)), Ok(None));
    }
    let held = reassembly.incomplete.len();
    assert!((1000..5000).contains(&held), "{held}");
    let last = |id| in_fragments(&packet(ENDS[0], &[7; 1400]), 1024, id).swap_remove(1);
    assert!(matches!(
        take(&mut reassembly, START, &last(4999)),
        Ok(Some(_))
    ));
    assert_eq!(take(&mut reassembly, START, &last(0)), Ok(None));
}

#[test]
fn congestion_of_one_is_that_of_all() {
    for ends in ENDS {
        for (marked, mark, seen) in [(1, 3, 3), (1, 0, 2), (0, 3, 3)] {
            let mut fragments = in_fragments(&packet(ends, &[7; 100]), 64, 1);
            let shift = if fragments[0][0] >> 4 == 4 { 0 } else { 4 };
            for fragment in &mut fragments {
                fragment[1] |= 2 << shift;
            }
            fragments[marked][1] = fragments[marked][1] & !(3 << shift) | mark << shift;
            let mut reassembly = Reassembly::new(LIMIT);
            assert_eq!(take(&mut reassembly, START, &fragments[0]), Ok(None));
            let packet = take(&mut reassembly, START, &fragments[1])
                .unwrap()
                .unwrap();
            assert_eq!(packet[1] >> shift & 3, seen);
        }
    }
}

/// Extension headers before and after the fragment header.
#[test]
fn extension_headers_stay() {
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let mut sent = packet(ENDS[1], &[7; 100]);
    sent.splice(40..40, options);
    sent[6] = 60;
    let length = (sent.len() - 40) as u16;
    sent[4..6].copy_from_slice(&length.to_be_bytes());
    let behind = in_fragments(&sent, 64, 1);
    // The same options again, before the fragment header.
    let both: Vec<Vec<u8>> = behind
        .iter()
        .map(|fragment| {
            let mut fragment = fragment.clone();
            fragment.splice(40..40, [44, 0, 1, 4, 0, 0, 0, 0]);
            fragment[6] = 60;
            let length = (fragment.len() - 40) as u16;
            fragment[4..6].copy_from_slice(&length.to_be_bytes());
            fragment
        })
        .collect();
    let mut twice = sent.clone();
    twice.splice(40..40, [60, 0, 1, 4, 0, 0, 0, 0]);
    twice[4..6].copy_from_slice(&(length + 8).to_be_bytes());
    for (fragments, expected) in [(behind, sent), (both, twice)] {
        let mut reassembly = Reassembly::new(LIMIT);
        assert_eq!(take(&mut reassembly, START, &fragments[0]), Ok(None));
        assert_eq!(
            take(&mut reassembly, START, &fragments[1]),
            Ok(Some(expected))
        );
    }
}

proptest! {
    #[test]
    fn in_any_order_with_others_in_between(
        payload in prop::collection::vec(any::<u8>(), 100..5000),
        size in (1usize..180).prop_map(|eights| eights * 8),
        v6: bool,
        seed: u64,
    ) {
        let ends = ENDS[usize::from(v6)];
        let other: Vec<u8> = payload.iter().map(|byte| !byte).collect();
        let sent = [packet(ends, &payload), packet(ends, &other)];
        let fragments = [in_fragments(&sent[0], size, 1), in_fragments(&sent[1], size, 2)];
        prop_assume!(fragments[0].len() > 1);
        let mut all: Vec<_> = (0..2).flat_map(|i| fragments[i].iter().map(move |f| (i, f))).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut all);
        let mut reassembly = Reassembly::new(LIMIT);
        let mut left = fragments.each_ref().map(Vec::len);
        for (i, fragment) in all {
            left[i] -= 1;
            let expected = (left[i] == 0).then(|| whole(sent[i].clone(), i as u16 + 1));
            prop_assert_eq!(take(&mut reassembly, START, fragment), Ok(expected));
        }
        prop_assert!(reassembly.incomplete.is_empty() && reassembly.cost == 0);
    }
}

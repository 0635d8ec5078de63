//! Tests of reassembly with the proxy's packet parser.

use super::*;
use crate::packet::{Incoming, parse};
use proptest::prelude::*;
use std::borrow::Cow;
use std::time::Duration;
use taupe_nat::reassembly::TIMEOUT;

/// The longest IPv4 packet, and the longest IPv6 payload, in bytes.
const LONGEST: usize = 65_535;

const NOW: Instant = Instant(5_000_000_000);

/// Returns an unfragmented UDP packet with this payload, over IPv4 and over IPv6.
fn datagrams(payload: &[u8]) -> [(FourTuple, Vec<u8>); 2] {
    [
        ("192.0.2.1:53", "10.0.0.1:40000"),
        ("[2001:db8::1]:53", "[fd00::1]:40000"),
    ]
    .map(|(from, to)| {
        let sent = FourTuple {
            local: from.parse().unwrap(),
            remote: to.parse().unwrap(),
        };
        let mut outgoing = Outgoing::new(LONGEST);
        assert!(push_udp(&mut outgoing, LONGEST, sent, payload));
        let packet = outgoing.packet(outgoing.slots()[0]).to_vec();
        let seen = FourTuple {
            local: sent.remote,
            remote: sent.local,
        };
        (seen, packet)
    })
}

/// Cuts a packet into fragments of at most `length` bytes, a multiple of 8.
fn cut(packet: &[u8], identification: u16, length: usize) -> Vec<Vec<u8>> {
    let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let (head, payload) = packet.split_at(header);
    let count = payload.len().div_ceil(length);
    let pieces = payload.chunks(length).enumerate();
    pieces
        .map(|(at, piece)| fragment(head, identification, at * length, at + 1 < count, piece))
        .collect()
}

fn fragment(head: &[u8], identification: u16, offset: usize, more: bool, piece: &[u8]) -> Vec<u8> {
    let mut packet = head.to_vec();
    let more = u16::from(more);
    if head.len() == 20 {
        let length = (20 + piece.len()) as u16;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet[4..6].copy_from_slice(&identification.to_be_bytes());
        let place = more << 13 | (offset / 8) as u16;
        packet[6..8].copy_from_slice(&place.to_be_bytes());
    } else {
        let length = (8 + piece.len()) as u16;
        packet[4..6].copy_from_slice(&length.to_be_bytes());
        let protocol = std::mem::replace(&mut packet[6], 44);
        packet.extend([protocol, 0]);
        packet.extend((offset as u16 | more).to_be_bytes());
        packet.extend(u32::from(identification).to_be_bytes());
    }
    packet.extend(piece);
    packet
}

proptest! {
    #[test]
    fn fragments_are_reassembled_in_any_order(
        payload in proptest::collection::vec(any::<u8>(), 1400..20_000),
        eighths in 8..170usize,
        seed in any::<u64>(),
    ) {
        for (four_tuple, packet) in datagrams(&payload) {
            let mut pieces = cut(&packet, 7, eighths * 8);
            let again = pieces[pieces.len() / 2].clone();
            pieces.push(again);
            let mut random = seed | 1;
            for at in (1..pieces.len()).rev() {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                pieces.swap(at, (random % (at as u64 + 1)) as usize);
            }
            let mut reassembly = Reassembly::new(REASSEMBLY_BYTES);
            let mut found = Vec::new();
            for piece in &pieces {
                prop_assert_eq!(parse(piece), None);
                found.extend(reassembly.reassemble(NOW, piece));
            }
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(parse(&found[0]), Some(Incoming::Udp(four_tuple, &payload)));
        }
    }

    #[test]
    fn arbitrary_fragments_do_not_panic_and_are_bounded(
        pieces in proptest::collection::vec(
            (0..4u16, 0..9000usize, any::<bool>(), 0..1400usize, any::<bool>()),
            1..400,
        ),
    ) {
        let mut reassembly = Reassembly::new(REASSEMBLY_BYTES);
        let packets = datagrams(b"");
        for (identification, eighths, more, length, is_v6) in pieces {
            let packet = &packets[usize::from(is_v6)].1;
            let head = if is_v6 { &packet[..40] } else { &packet[..20] };
            let offset = eighths * 8 % 65_536;
            let piece = fragment(head, identification, offset, more, &vec![7; length]);
            if let Some(whole) = reassembly.reassemble(NOW, &piece) {
                prop_assert!(whole.len() <= 40 + LONGEST);
            }
            prop_assert!(reassembly.cost() <= REASSEMBLY_BYTES);
        }
    }
}

#[test]
fn overlapping_or_inconsistent_fragments_are_dropped() {
    let payload = vec![7; 3000];
    for (_, packet) in datagrams(&payload) {
        let pieces = cut(&packet, 7, 1000);
        let head = if packet[0] >> 4 == 4 { 20 } else { 40 };
        let head = &packet[..head];
        for wrong in [
            fragment(head, 7, 992, true, &[7; 16]),
            fragment(head, 7, 1000, true, &[8; 1000]),
            fragment(head, 7, 1000, false, &[7; 8]),
            fragment(head, 7, 4000, true, &[7; 8]),
            fragment(head, 7, 4000, false, &[7; 8]),
            fragment(head, 7, 2000, true, &[7; 9]),
            fragment(head, 7, 65_528, true, &[7; 16]),
            fragment(head, 7, 2000, true, &[]),
        ] {
            let mut reassembly = Reassembly::new(REASSEMBLY_BYTES);
            for piece in [&pieces[0], &pieces[1], &pieces[3], &wrong, &pieces[2]] {
                assert!(reassembly.reassemble(NOW, piece).is_none());
            }
        }
        // A fragment with another identification does not complete this packet.
        let mut reassembly = Reassembly::new(REASSEMBLY_BYTES);
        let other = cut(&packet, 8, 1000);
        for piece in [&pieces[0], &pieces[1], &other[2], &pieces[3]] {
            assert!(reassembly.reassemble(NOW, piece).is_none());
        }
        assert!(reassembly.reassemble(NOW, &pieces[2]).is_some());
    }
}

#[test]
fn old_or_excess_incomplete_packets_are_dropped() {
    for (_, packet) in datagrams(&[7; 3000]) {
        let mut reassembly = Reassembly::new(REASSEMBLY_BYTES);
        let pieces = cut(&packet, 7, 1600);
        assert!(reassembly.reassemble(NOW, &pieces[0]).is_none());
        let in_time = NOW + TIMEOUT - Duration::from_nanos(1);
        assert!(reassembly.reassemble(in_time, &pieces[1]).is_some());
        assert!(reassembly.reassemble(NOW, &pieces[0]).is_none());
        assert!(reassembly.reassemble(NOW + TIMEOUT, &pieces[1]).is_none());

        let mut reassembly = Reassembly::new(REASSEMBLY_BYTES);
        let first = |number| cut(&packet, number, 1600).swap_remove(0);
        let second = |number| cut(&packet, number, 1600).swap_remove(1);
        for number in 0..2000 {
            assert!(reassembly.reassemble(NOW, &first(number)).is_none());
            assert!(reassembly.cost() <= REASSEMBLY_BYTES);
        }
        assert!(
            reassembly.reassemble(NOW, &second(0)).is_none(),
            "the oldest"
        );
        assert!(
            reassembly.reassemble(NOW, &second(1999)).is_some(),
            "the newest"
        );
    }
}

#[test]
fn unfragmented_packets_pass_unchanged() {
    let mut reassembly = Reassembly::new(REASSEMBLY_BYTES);
    for (_, packet) in datagrams(b"hello") {
        let whole = reassembly.reassemble(NOW, &packet);
        assert!(matches!(whole, Some(Cow::Borrowed(same)) if same == packet));
        // A complete IPv6 packet may have a fragment header (RFC 6946).
        let head = if packet[0] >> 4 == 4 { 20 } else { 40 };
        let alone = fragment(&packet[..head], 7, 0, false, &packet[head..]);
        let whole = reassembly.reassemble(NOW, &alone).unwrap();
        assert!(parse(&whole).is_some());
    }
    assert!(
        reassembly
            .reassemble(NOW, &[])
            .is_some_and(|same| same.is_empty())
    );
}

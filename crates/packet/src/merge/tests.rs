use proptest::prelude::*;

use super::*;
use crate::{
    fuzzing::{check_round_trip, lay_out},
    testing::{ACK, CWR, ECE, FIN, PSH, RST, SYN, Spec, URG, any_spec},
    virtio,
};

const BOTH: Coalesce = Coalesce {
    tcp: true,
    udp: true,
};

/// Returns headers, bytes and counts of the writes for these packets.
fn merged(packets: &[Vec<u8>], coalesce: Coalesce) -> Vec<(VirtioHeader, Vec<u8>, usize)> {
    let (mut buffer, ranges) = lay_out(packets);
    let mut merger = Merger::new();
    let writes = merger.merge(&mut buffer, &ranges, coalesce);
    writes
        .map(|write| {
            let bytes = write.slices().collect::<Vec<_>>().concat();
            (write.header(), bytes, write.count())
        })
        .collect()
}

fn counts(packets: &[Vec<u8>]) -> Vec<usize> {
    check_round_trip(packets);
    let writes = merged(packets, BOTH);
    writes.iter().map(|(_, _, count)| *count).collect()
}

fn bytes(specs: &[Spec]) -> Vec<Vec<u8>> {
    specs.iter().map(Spec::bytes).collect()
}

fn kinds() -> [Spec; 4] {
    [(false, false), (false, true), (true, false), (true, true)].map(|(v6, tcp)| Spec {
        v6,
        tcp,
        options: if tcp { vec![1; 12] } else { Vec::new() },
        payload: (0..1000).map(|i| (i / 7) as u8).collect(),
        ..Spec::default()
    })
}

/// Three segments of 100 bytes, with the middle one edited.
fn with_middle(spec: &Spec, edit: impl Fn(&mut Spec)) -> Vec<Vec<u8>> {
    let mut spec = spec.clone();
    spec.payload.truncate(300);
    let mut segments = spec.segments(100);
    edit(&mut segments[1]);
    bytes(&segments)
}

#[test]
fn segments_become_the_super_packet_they_came_from() {
    for spec in kinds() {
        for size in [100, 300, 999] {
            let writes = merged(&bytes(&spec.segments(size)), BOTH);
            let (mut expected_header, expected) = spec.super_packet(size as u16);
            expected_header.hdr_len = spec.header_len() as u16;
            let count = 1000usize.div_ceil(size);
            assert_eq!(writes, [(expected_header, expected, count)]);
        }
    }
}

proptest! {
    #[test]
    fn any_super_packet_survives(spec in any_spec(6000), size in 100u16..2000) {
        // Segments with CWR are not merged.
        let spec = Spec { flags: spec.flags & !CWR, ..spec };
        let writes = merged(&bytes(&spec.segments(size.into())), BOTH);
        prop_assert_eq!(writes.len(), 1);
        let (mut header, bytes) = spec.super_packet(size);
        if spec.payload.len() > usize::from(size) {
            header.hdr_len = spec.header_len() as u16;
            prop_assert_eq!(&writes[0], &(header, bytes, spec.payload.len().div_ceil(size.into())));
        } else {
            prop_assert_eq!(&writes[0], &(VirtioHeader::default(), spec.bytes(), 1));
        }
    }

    /// Few flows and few values, so that almost all packets almost match.
    #[test]
    fn no_packet_is_lost_changed_or_overtaken(steps in prop::collection::vec(
        (0usize..6, 0u8..24, 1usize..4), 0..80,
    )) {
        let mut flows = [0, 1, 2, 3, 0, 2].map(|kind: usize| kinds()[kind].clone());
        flows[4].ports.0 += 1;
        flows[5].source += 1;
        let mut packets = Vec::new();
        for (flow, deviation, length) in steps {
            let spec = &mut flows[flow];
            spec.payload = vec![flow as u8; 1 + length / 3 * 50];
            let mut packet = spec.clone();
            spec.sequence = spec.sequence.wrapping_add(spec.payload.len() as u32);
            spec.id = spec.id.wrapping_add(1);
            match deviation {
                0 => packet.flags |= PSH,
                1 => packet.flags |= FIN,
                2 => packet.flags |= SYN,
                3 => packet.tos ^= 3,
                4 => packet.ttl -= 1,
                5 => packet.id ^= 9,
                6 => packet.dont_fragment = false,
                7 => packet.sequence ^= 1,
                8 => packet.window += 1,
                9 => packet.payload.clear(),
                _ => {}
            }
            let mut packet = packet.bytes();
            match deviation {
                10 => { let last = packet.len() - 1; packet[last] ^= 1; }
                11 => { packet.truncate(10); }
                12 => { packet.push(0); }
                _ => {}
            }
            packets.push(packet);
        }
        check_round_trip(&packets);
    }

    #[test]
    fn anything_at_all_goes_through(data in prop::collection::vec(any::<u8>(), 0..600)) {
        crate::fuzzing::split_merge(&data);
        crate::fuzzing::ip_parse(&data);
    }
}

#[test]
fn interleaved_flows_are_told_apart() {
    let [mut a, _, mut b, mut c] = kinds();
    for spec in [&mut a, &mut b, &mut c] {
        spec.payload.truncate(400);
    }
    c.v6 = false;
    let flows = [a, b, c].map(|spec| bytes(&spec.segments(100)));
    let packets: Vec<_> = (0..4)
        .flat_map(|i| flows.each_ref().map(|flow| flow[i].clone()))
        .collect();
    assert_eq!(counts(&packets), [4, 4, 4]);
    let writes = merged(&packets, BOTH);
    for (write, flow) in writes.iter().zip(flows) {
        // Writes are in the order of their first packets.
        assert_eq!(write.1[20..24], flow[0][20..24]);
    }
}

#[test]
fn more_flows_than_can_be_open_are_still_in_order() {
    let flow = |port| {
        let mut spec = kinds()[1].clone();
        spec.ports.0 = port;
        spec.payload.truncate(200);
        bytes(&spec.segments(100))
    };
    let open: Vec<_> = (0..MAX_OPEN as u16).map(flow).collect();
    let interleave = |flows: &[Vec<Vec<u8>>]| -> Vec<Vec<u8>> {
        (0..2)
            .flat_map(|i| flows.iter().map(move |flow| flow[i].clone()))
            .collect()
    };
    assert_eq!(counts(&interleave(&open)), [2; MAX_OPEN]);
    let more: Vec<_> = (0..MAX_OPEN as u16 + 1).map(flow).collect();
    assert_eq!(
        counts(&interleave(&more)).iter().sum::<usize>(),
        2 * (MAX_OPEN + 1)
    );
    // Only the oldest flow had to be closed.
    let first_of_all = more.iter().map(|flow| flow[0].clone());
    let second_of_all = more.iter().rev().map(|flow| flow[1].clone());
    let counts = counts(&first_of_all.chain(second_of_all).collect::<Vec<_>>());
    assert_eq!(counts[0], 1);
    assert_eq!(counts[1..=MAX_OPEN], [2; MAX_OPEN]);
    assert_eq!(counts[MAX_OPEN + 1..], [1]);
}

#[test]
fn a_deviation_ends_what_was_merged() {
    for spec in kinds() {
        assert_eq!(counts(&with_middle(&spec, |_| {})), [3]);
        for edit in [
            // A congestion mark of the network.
            |spec: &mut Spec| spec.tos = 3,
            // Another DSCP.
            |spec: &mut Spec| spec.tos = 0xb8,
            |spec: &mut Spec| spec.ttl = 63,
        ] {
            assert_eq!(counts(&with_middle(&spec, edit)), [1, 1, 1]);
        }
        let other_label = with_middle(&spec, |spec| spec.flow_label = 1);
        assert_eq!(counts(&other_label).len(), if spec.v6 { 3 } else { 1 });
        let fragmentable = with_middle(&spec, |spec| spec.dont_fragment = false);
        assert_eq!(counts(&fragmentable).len(), if spec.v6 { 1 } else { 3 });
    }
}

#[test]
fn tcp_headers_must_agree() {
    for spec in kinds().into_iter().filter(|spec| spec.tcp) {
        for edit in [
            |spec: &mut Spec| spec.acknowledgement += 1,
            |spec: &mut Spec| spec.window += 1,
            |spec: &mut Spec| spec.sequence += 1,
            |spec: &mut Spec| spec.sequence -= 1,
            |spec: &mut Spec| spec.options[11] = 0,
            |spec: &mut Spec| spec.options.truncate(8),
            |spec: &mut Spec| spec.flags |= ECE,
            |spec: &mut Spec| spec.flags |= CWR,
            |spec: &mut Spec| spec.flags |= SYN,
            |spec: &mut Spec| spec.flags &= !ACK,
            |spec: &mut Spec| spec.payload.clear(),
        ] {
            assert_eq!(counts(&with_middle(&spec, edit)), [1, 1, 1]);
        }
        // An urgent pointer without the flag.
        let mut packets = with_middle(&spec, |_| {});
        let at = spec.ip_header_len() + 18;
        packets[1][at + 1] = 1;
        let checksum = crate::checksum::update(
            u16::from_be_bytes([packets[1][at - 2], packets[1][at - 1]]),
            0,
            1,
        );
        packets[1][at - 2..at].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(counts(&packets), [1, 1, 1]);
    }
}

/// Accurate ECN (RFC 9768) uses a flag in the byte of the data offset.
#[test]
fn reserved_bits_must_agree() {
    for spec in kinds().into_iter().filter(|spec| spec.tcp) {
        let mut packets = with_middle(&spec, |_| {});
        let at = spec.ip_header_len();
        let word = |packet: &[u8], at| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let old = word(&packets[1], at + 12);
        packets[1][at + 12] |= 1;
        let new = word(&packets[1], at + 12);
        let checksum = crate::checksum::update(word(&packets[1], at + 16), old, new);
        packets[1][at + 16..at + 18].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(counts(&packets), [1, 1, 1]);
    }
}

#[test]
fn no_fragment_is_merged() {
    // More fragments; the reserved bit; an offset.
    for (at, bit) in [(6, 0x20), (6, 0x80), (7, 1)] {
        for spec in kinds().into_iter().filter(|spec| !spec.v6) {
            let mut packets = with_middle(&spec, |_| {});
            for packet in &mut packets {
                packet[at] |= bit;
                let checksum = !Spec::ipv4_sum(packet);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            assert_eq!(counts(&packets), [1, 1, 1], "{bit:#x} at {at}");
        }
    }
}

#[test]
fn flags_that_mean_more_than_data_go_alone() {
    for spec in kinds().into_iter().filter(|spec| spec.tcp) {
        for flag in [SYN, RST, URG, CWR] {
            let mut segments = spec.segments(400);
            for segment in &mut segments {
                segment.flags |= flag;
            }
            assert_eq!(counts(&bytes(&segments)), [1, 1, 1], "{flag:#x}");
        }
    }
}

#[test]
fn push_and_fin_end_a_group_and_are_kept() {
    for spec in kinds().into_iter().filter(|spec| spec.tcp) {
        for flag in [PSH, FIN] {
            let packets = with_middle(&spec, |spec| spec.flags |= flag);
            assert_eq!(counts(&packets), [2, 1]);
            let flags = spec.ip_header_len() + 13;
            assert_eq!(merged(&packets, BOTH)[0].1[flags], ACK | flag);
        }
    }
}

#[test]
fn sequence_numbers_wrap() {
    let mut spec = kinds()[1].clone();
    spec.sequence = u32::MAX - 150;
    assert_eq!(counts(&bytes(&spec.segments(100))), [10]);
}

#[test]
fn a_shorter_segment_ends_and_a_longer_one_starts_a_group() {
    for spec in kinds() {
        let lengths = [100, 100, 50, 50, 100, 101, 101, 1];
        let mut spec = spec.clone();
        let packets = lengths.map(|length| {
            spec.payload = vec![1; length];
            let packet = spec.bytes();
            spec.sequence += length as u32;
            spec.id += 1;
            packet
        });
        assert_eq!(counts(&packets), [3, 1, 1, 3]);
    }
}

#[test]
fn identifications_matter_only_where_fragments_may() {
    let spec = Spec {
        dont_fragment: false,
        id: u16::MAX - 1,
        ..kinds()[1].clone()
    };
    assert_eq!(counts(&with_middle(&spec, |_| {})), [3]);
    assert_eq!(counts(&with_middle(&spec, |spec| spec.id = 7)), [1, 1, 1]);
    let spec = Spec {
        dont_fragment: true,
        ..spec
    };
    assert_eq!(counts(&with_middle(&spec, |spec| spec.id = 7)), [3]);
}

#[test]
fn a_wrong_checksum_goes_alone_and_unchanged() {
    for spec in kinds() {
        for position in 0..3 {
            let mut packets = with_middle(&spec, |_| {});
            let last = packets[position].len() - 1;
            packets[position][last] ^= 0x10;
            let writes = merged(&packets, BOTH);
            let alone = writes
                .iter()
                .filter(|(_, bytes, _)| *bytes == packets[position]);
            assert_eq!(alone.count(), 1, "{position}");
            let expected = [vec![1, 2], vec![1, 1, 1], vec![2, 1]];
            assert_eq!(counts(&packets), expected[position]);
        }
        if !spec.v6 {
            let mut packets = with_middle(&spec, |_| {});
            packets[2][10] ^= 1;
            assert_eq!(counts(&packets), [2, 1]);
        }
    }
}

#[test]
fn udp_without_checksum_goes_alone() {
    for spec in kinds().into_iter().filter(|spec| !spec.tcp) {
        let mut packets = with_middle(&spec, |_| {});
        let at = spec.ip_header_len() + 6;
        packets[1][at..at + 2].fill(0);
        assert_eq!(counts(&packets), [1, 1, 1]);

        // Even if the checksum would be correct because it is zero.
        let packets = with_middle(&spec, |spec| {
            let last = spec.payload.len() - 2;
            spec.payload[last..].fill(0);
            let checksum = &spec.bytes()[at..at + 2];
            spec.payload[last..].copy_from_slice(checksum);
        });
        assert_eq!(packets[1][at..at + 2], [0xff, 0xff]);
        assert_eq!(counts(&packets), [3]);
        let mut without = packets;
        without[1][at..at + 2].fill(0);
        assert_eq!(counts(&without), [1, 1, 1]);
    }
}

#[test]
fn udp_lengths_that_lie_go_alone() {
    for spec in kinds().into_iter().filter(|spec| !spec.tcp) {
        let mut packets = with_middle(&spec, |_| {});
        packets[1][spec.ip_header_len() + 5] -= 1;
        assert_eq!(counts(&packets), [1, 1, 1]);
    }
}

#[test]
fn what_hides_its_ports_is_not_overtaken() {
    // An IPv4 fragment, IPv4 options, and an IPv6 extension header.
    let v4 = kinds()[1].clone();
    let mut fragment = with_middle(&v4, |_| {});
    fragment[1][7] = 1;
    assert_eq!(counts(&fragment), [1, 1, 1]);
    let mut options = with_middle(&v4, |_| {});
    options[1][0] = 0x46;
    let checksum = u16::from_be_bytes([options[1][10], options[1][11]]);
    let checksum = crate::checksum::update(checksum, 0x4500, 0x4600);
    options[1][10..12].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(counts(&options), [1, 1, 1]);
    let v6 = kinds()[3].clone();
    let mut extension = with_middle(&v6, |_| {});
    extension[1][6] = 44;
    assert_eq!(counts(&extension), [1, 1, 1]);
    // The same packets from another host. The first and the third are not consecutive, so they
    // stay separate too.
    for (mut packets, source) in [(fragment, 15), (options, 15), (extension, 23)] {
        packets[1][source] ^= 1;
        let writes = merged(&packets, BOTH);
        assert_eq!(
            writes.iter().map(|write| write.2).collect::<Vec<_>>(),
            [1, 1, 1]
        );
    }
}

#[test]
fn strangers_do_not_interrupt_a_flow() {
    let v4 = kinds()[1].clone();
    let segments = bytes(&v4.segments(500));
    let mut stranger = segments[0].clone();
    stranger[15] = 99;
    stranger[7] = 1;
    let mut icmp = segments[0].clone();
    icmp[9] = 1;
    let packets = [segments[0].clone(), stranger, icmp, segments[1].clone()];
    assert_eq!(counts(&packets), [2, 1, 1]);
    let garbage = vec![0xff; 40];
    let packets = [segments[0].clone(), garbage, segments[1].clone()];
    assert_eq!(counts(&packets), [1, 1, 1]);
}

#[test]
fn super_packets_stay_within_their_limits() {
    for mut spec in kinds() {
        spec.payload = vec![3; 63 * 1200];
        let segments = spec.segments(1200);
        let header = spec.header_len();
        let most = (MAX_LEN - header) / 1200;
        assert_eq!(counts(&bytes(&segments)), [most, 63 - most]);
        spec.payload = vec![3; MAX_COUNT + 1];
        assert_eq!(counts(&bytes(&spec.segments(1))), [MAX_COUNT, 1]);
    }
    // The exact limit: 40 + 5 × 13,099.
    let mut spec = Spec {
        payload: vec![3; 65_495],
        ..Spec::default()
    };
    assert_eq!(counts(&bytes(&spec.segments(13_099))), [5]);
    spec.payload.push(3);
    assert_eq!(counts(&bytes(&spec.segments(13_099))), [5, 1]);
}

#[test]
fn what_is_switched_off_is_not_merged() {
    let [udp, tcp, ..] = kinds().map(|spec| bytes(&spec.segments(500)));
    let packets = [udp, tcp].concat();
    let counts = |tcp, udp| -> Vec<_> {
        let writes = merged(&packets, Coalesce { tcp, udp });
        writes.iter().map(|write| write.2).collect()
    };
    assert_eq!(counts(true, true), [2, 2]);
    assert_eq!(counts(true, false), [1, 1, 2]);
    assert_eq!(counts(false, true), [2, 1, 1]);
    assert_eq!(counts(false, false), [1, 1, 1, 1]);
}

#[test]
fn a_merger_forgets_the_batch_before() {
    let segments = bytes(&kinds()[1].segments(500));
    let mut merger = Merger::new();
    for _ in 0..2 {
        for packet in &segments {
            let mut buffer = packet.clone();
            let whole = 0..packet.len();
            let writes: Vec<_> = merger
                .merge(&mut buffer, std::slice::from_ref(&whole), BOTH)
                .map(|write| write.count())
                .collect();
            assert_eq!(writes, [1]);
        }
    }
}

#[test]
fn ranges_outside_the_buffer_are_skipped() {
    let packet = Spec::default().bytes();
    let mut buffer = packet.clone();
    let length = packet.len();
    #[expect(clippy::reversed_empty_ranges)]
    let ranges = [
        0..length,
        0..length + 1,
        length + 1..length + 2,
        5..3,
        0..length,
    ];
    let mut merger = Merger::new();
    let writes = merger.merge(&mut buffer, &ranges, BOTH);
    assert_eq!(writes.len(), 2);
}

#[test]
fn a_single_write_is_the_packet() {
    let packet = Spec::default().bytes();
    let write = TunWrite::single(&packet);
    assert_eq!((write.count(), write.len()), (1, packet.len()));
    assert_eq!(write.header().gso_type, virtio::GSO_NONE);
    assert_eq!(write.slices().collect::<Vec<_>>(), [packet.as_slice()]);
}

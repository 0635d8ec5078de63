use etherparse::{
    IcmpEchoHeader, Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use proptest::prelude::*;

use super::*;

fn unreachable(packet: &[u8], mtu: usize, from: Option<IpAddr>) -> Option<Vec<u8>> {
    error(Error::HostUnreachable, packet, mtu, from)
}

fn udp4(source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(source, destination, 3)
        .udp(1000, 53)
        .write(&mut packet, payload)
        .unwrap();
    packet
}

fn udp6(source: [u8; 16], destination: [u8; 16], payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv6(source, destination, 3)
        .udp(1000, 53)
        .write(&mut packet, payload)
        .unwrap();
    packet
}

fn icmp4(kind: Icmpv4Type) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 3)
        .icmpv4(kind)
        .write(&mut packet, b"data")
        .unwrap();
    packet
}

fn icmp6(kind: Icmpv6Type) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv6([0xfd; 16], [0xfe; 16], 3)
        .icmpv6(kind)
        .write(&mut packet, b"data")
        .unwrap();
    packet
}

fn check(answer: &[u8], packet: &[u8], from: IpAddr, to: IpAddr) {
    check_error(answer, packet, (from, to), [(3, 1), (1, 3)], 0);
}

/// Verifies an answer with an independent parser. `kinds` are type and code for both versions.
fn check_error(
    answer: &[u8],
    packet: &[u8],
    (from, to): (IpAddr, IpAddr),
    kinds: [(u8, u8); 2],
    parameter: u32,
) {
    let header_len = if answer[0] >> 4 == 4 { 20 } else { 40 };
    assert_eq!(
        answer[header_len + 4..header_len + 8],
        parameter.to_be_bytes()
    );
    let sliced = SlicedPacket::from_ip(answer).unwrap();
    match (sliced.net.unwrap(), sliced.transport.unwrap()) {
        (NetSlice::Ipv4(ip), TransportSlice::Icmpv4(icmp)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(IpAddr::from(header.source), from);
            assert_eq!(IpAddr::from(header.destination), to);
            assert_eq!(usize::from(header.total_len), answer.len());
            assert!(header.time_to_live > 1);
            assert_eq!((icmp.type_u8(), icmp.code_u8()), kinds[0]);
            let expected = icmp.icmp_type().calc_checksum(icmp.payload());
            assert_eq!(icmp.header().checksum, expected);
            assert!(packet.starts_with(icmp.payload()));
        }
        (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(icmp)) => {
            let header = ip.header();
            assert_eq!(IpAddr::from(header.source()), from);
            assert_eq!(IpAddr::from(header.destination()), to);
            assert_eq!(usize::from(header.payload_length()) + 40, answer.len());
            assert_eq!((icmp.type_u8(), icmp.code_u8()), kinds[1]);
            assert!(icmp.is_checksum_valid(header.source(), header.destination()));
            assert!(packet.starts_with(icmp.payload()));
        }
        other => panic!("not an ICMP answer: {other:?}"),
    }
}

#[test]
fn answers_come_from_the_destination_or_from_whom_one_says() {
    let packet = udp4([10, 0, 0, 1], [10, 0, 0, 2], b"question");
    let (a, b, c) = (
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
        [10, 0, 0, 3].into(),
    );
    check(&unreachable(&packet, 1420, None).unwrap(), &packet, b, a);
    check(&unreachable(&packet, 1420, Some(c)).unwrap(), &packet, c, a);

    let packet = udp6([0xfd; 16], [0xfe; 16], b"question");
    let (a, b, c) = ([0xfd; 16].into(), [0xfe; 16].into(), [0xfc; 16].into());
    check(&unreachable(&packet, 1420, None).unwrap(), &packet, b, a);
    check(&unreachable(&packet, 1420, Some(c)).unwrap(), &packet, c, a);
    // An address of the other family cannot be the source.
    assert_eq!(unreachable(&packet, 1420, Some([10, 0, 0, 1].into())), None);
}

#[test]
fn each_error_says_what_it_is() {
    for (kind, kinds, parameter) in [
        (Error::HostUnreachable, [(3, 1), (1, 3)], 0),
        (Error::NoRoute, [(3, 0), (1, 0)], 0),
        (Error::PortUnreachable, [(3, 3), (1, 4)], 0),
        (Error::TooBig(1420), [(3, 4), (2, 0)], 1420),
    ] {
        let packet = udp4([10, 0, 0, 1], [10, 0, 0, 2], &[7; 1473]);
        let answer = error(kind, &packet, 1420, None).unwrap();
        let way = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        check_error(&answer, &packet, way, kinds, parameter);
        let packet = udp6([0xfd; 16], [0xfe; 16], &[7; 1473]);
        let answer = error(kind, &packet, 1420, None).unwrap();
        let way = ([0xfe; 16].into(), [0xfd; 16].into());
        check_error(&answer, &packet, way, kinds, parameter);
    }
}

#[test]
fn answers_quote_what_fits() {
    for (mtu, v4, v6) in [
        (1420, 576, 1280),
        (577, 576, 577),
        (576, 576, 576),
        (575, 575, 575),
        (96, 96, 96),
    ] {
        let packet = udp4([10, 0, 0, 1], [10, 0, 0, 2], &[7; 1300]);
        let answer = unreachable(&packet, mtu, None).unwrap();
        assert_eq!(answer.len(), v4);
        check(&answer, &packet, [10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        let packet = udp6([0xfd; 16], [0xfe; 16], &[7; 1300]);
        let answer = unreachable(&packet, mtu, None).unwrap();
        assert_eq!(answer.len(), v6);
        check(&answer, &packet, [0xfe; 16].into(), [0xfd; 16].into());
    }
    // The header and the ports must fit: 20 + 8 + 28 and 40 + 8 + 48 bytes.
    let packet = udp4([10, 0, 0, 1], [10, 0, 0, 2], &[7; 1300]);
    assert!(unreachable(&packet, 56, None).is_some());
    assert_eq!(unreachable(&packet, 55, None), None);
    let packet = udp6([0xfd; 16], [0xfe; 16], &[7; 1300]);
    assert!(unreachable(&packet, 96, None).is_some());
    assert_eq!(unreachable(&packet, 95, None), None);
}

#[test]
fn padding_is_not_quoted() {
    let packet = udp4([10, 0, 0, 1], [10, 0, 0, 2], b"question");
    let mut padded = packet.clone();
    padded.extend([0; 9]);
    assert_eq!(
        unreachable(&padded, 1420, None),
        unreachable(&packet, 1420, None)
    );
}

#[test]
fn queries_are_answered_and_errors_are_not() {
    let echo = IcmpEchoHeader { id: 1, seq: 2 };
    assert!(unreachable(&icmp4(Icmpv4Type::EchoRequest(echo)), 1420, None).is_some());
    assert!(unreachable(&icmp6(Icmpv6Type::EchoRequest(echo)), 1420, None).is_some());
    let raw4 = |type_u8| Icmpv4Type::Unknown {
        type_u8,
        code_u8: 0,
        bytes5to8: [0; 4],
    };
    for kind in [3, 4, 5, 11, 12] {
        assert_eq!(unreachable(&icmp4(raw4(kind)), 1420, None), None, "{kind}");
    }
    let raw6 = |type_u8| Icmpv6Type::Unknown {
        type_u8,
        code_u8: 0,
        bytes5to8: [0; 4],
    };
    for kind in [1, 2, 3, 4, 127, 137] {
        assert_eq!(unreachable(&icmp6(raw6(kind)), 1420, None), None, "{kind}");
    }
    // Cut off before its type, so it may be an error.
    let mut packet = icmp4(Icmpv4Type::EchoRequest(echo));
    packet.truncate(20);
    packet[2..4].copy_from_slice(&20u16.to_be_bytes());
    assert_eq!(unreachable(&packet, 1420, None), None);
}

#[test]
fn later_fragments_are_not_answered() {
    let mut packet = udp4([10, 0, 0, 1], [10, 0, 0, 2], b"question");
    packet[6] = 0x20;
    assert!(unreachable(&packet, 1420, None).is_some());
    packet[7] = 1;
    assert_eq!(unreachable(&packet, 1420, None), None);
}

#[test]
fn many_hosts_and_nobody_are_not_answered() {
    let good = [10, 0, 0, 1];
    for bad in [[224, 0, 0, 1], [239, 255, 255, 255], [255; 4], [0; 4]] {
        assert_eq!(unreachable(&udp4(bad, good, b""), 1420, None), None);
        assert_eq!(unreachable(&udp4(good, bad, b""), 1420, None), None);
    }
    let good = [0xfd; 16];
    let mut multicast = [0; 16];
    multicast[0] = 0xff;
    for bad in [multicast, [0; 16]] {
        assert_eq!(unreachable(&udp6(bad, good, b""), 1420, None), None);
        assert_eq!(unreachable(&udp6(good, bad, b""), 1420, None), None);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered_or_not(
        bytes in prop::collection::vec(any::<u8>(), 0..200), version in 4u8..7, mtu in 0usize..2000,
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version << 4 | *first & 0xf;
        }
        if let Some(answer) = unreachable(&bytes, mtu, None) {
            prop_assert!(answer.len() <= mtu);
            prop_assert!(ip::Packet::parse(&answer).is_ok());
        }
    }
}

use super::*;
use proptest::prelude::*;

fn four_tuple(local: &str, remote: &str) -> FourTuple {
    FourTuple {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
    }
}

fn built(mtu: usize, four_tuple: FourTuple, payload: &[u8]) -> Option<Vec<u8>> {
    let mut outgoing = Outgoing::new(mtu);
    let fits = push_udp(&mut outgoing, mtu, four_tuple, payload);
    let slot = outgoing.slots().first().copied();
    assert_eq!(fits, slot.is_some());
    slot.map(|slot| outgoing.packet(slot).to_vec())
}

#[test]
fn a_written_datagram_parses_back() {
    for (us, them, header) in [
        ("10.0.0.1:1000", "192.0.2.1:53", 28),
        ("[fd00::1]:1000", "[2001:db8::1]:53", 48),
    ] {
        let way = four_tuple(us, them);
        let packet = built(1280, way, b"hello").unwrap();
        assert_eq!(packet.len(), header + 5);
        let back = Incoming::Udp(four_tuple(them, us), b"hello");
        assert_eq!(parse(&packet), Some(back));
        for at in [header - 8, header + 4] {
            let mut damaged = packet.clone();
            damaged[at] ^= 1;
            assert_eq!(parse(&damaged), None, "{at}");
        }
        assert_eq!(parse(&packet[..packet.len() - 1]), None);
        assert!(built(1280, way, &vec![0; 1280 - header]).is_some());
        assert!(built(1280, way, &vec![0; 1281 - header]).is_none());
    }
    assert!(built(1280, four_tuple("10.0.0.1:1", "[2001:db8::1]:1"), b"").is_none());
}

#[test]
fn fragments_belong_to_no_flow() {
    let packet = built(1280, four_tuple("10.0.0.1:1000", "192.0.2.1:53"), b"hello").unwrap();
    for (flags, expected) in [(0x40, true), (0x20, false), (0x00, true), (0x01, false)] {
        let mut packet = packet.clone();
        packet[6] = flags;
        assert_eq!(parse(&packet).is_some(), expected, "{flags}");
    }
}

/// Sequence number of the segments that ICMP errors quote.
const SEQUENCE: i32 = -70_000;

/// Returns a router's ICMP error about a segment from `us` to `them`.
fn error(us: &str, them: &str, kind: u8, code: u8, rest: u32, protocol: u8) -> Vec<u8> {
    let way = four_tuple(us, them);
    let mut quoted = built(1280, way, b"").unwrap();
    let (router, header, number): (IpAddr, usize, u8) = match way.local {
        SocketAddr::V4(_) => {
            quoted[9] = protocol;
            ("192.0.2.254".parse().unwrap(), 20, 1)
        }
        SocketAddr::V6(_) => {
            quoted[6] = protocol;
            ("2001:db8::ff".parse().unwrap(), 40, 58)
        }
    };
    let ports = quoted.len() - UDP_HEADER;
    quoted[ports + 4..].copy_from_slice(&SEQUENCE.to_be_bytes());
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(rest.to_be_bytes());
    icmp.extend(&quoted);
    let (source, destination) = (IpAddress::from(router), IpAddress::from(way.local.ip()));
    let ip = IpRepr::new(
        source,
        destination,
        IpProtocol::from(number),
        icmp.len(),
        64,
    );
    let mut packet = vec![0; header];
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    packet.extend(&icmp);
    match (router, way.local.ip()) {
        (IpAddr::V6(router), IpAddr::V6(us)) => {
            Icmpv6Packet::new_unchecked(&mut packet[header..]).fill_checksum(&router, &us);
        }
        _ => Icmpv4Packet::new_unchecked(&mut packet[header..]).fill_checksum(),
    }
    packet
}

#[test]
fn icmp_errors_are_classified() {
    let v4 = ("10.0.0.1:1000", "192.0.2.1:80");
    let v6 = ("[fd00::1]:1000", "[2001:db8::1]:80");
    for ((us, them), kind, code, rest, expected) in [
        (v4, 3, 0, 0, IcmpProblem::Network),
        (v4, 3, 1, 0, IcmpProblem::Host),
        (v4, 3, 3, 0, IcmpProblem::Refused),
        (v4, 3, 4, 1300, IcmpProblem::TooLong(1300)),
        (v4, 3, 13, 0, IcmpProblem::Host),
        (v4, 11, 0, 0, IcmpProblem::HopLimit),
        (v6, 1, 0, 0, IcmpProblem::Network),
        (v6, 1, 3, 0, IcmpProblem::Host),
        (v6, 1, 4, 0, IcmpProblem::Refused),
        (v6, 2, 0, 1300, IcmpProblem::TooLong(1300)),
        (v6, 3, 0, 0, IcmpProblem::HopLimit),
    ] {
        let packet = error(us, them, kind, code, rest, 6);
        let expected = IcmpError {
            problem: expected,
            sequence: TcpSeqNumber(SEQUENCE),
        };
        let expected = Some(Incoming::IcmpError(four_tuple(us, them), expected));
        assert_eq!(parse(&packet), expected, "{kind} {code}");
        let mut damaged = packet;
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(parse(&damaged), None);
    }
    assert_eq!(
        parse(&error(v4.0, v4.1, 8, 0, 0, 6)),
        None,
        "an echo request"
    );
    assert_eq!(parse(&error(v4.0, v4.1, 3, 1, 0, 17)), None, "about UDP");
    let mut fragment = error(v4.0, v4.1, 3, 1, 0, 6);
    // The low byte of the quoted fragment offset.
    fragment[20 + 8 + 7] = 1;
    Icmpv4Packet::new_unchecked(&mut fragment[20..]).fill_checksum();
    assert_eq!(parse(&fragment), None, "about a later fragment");
}

proptest! {
    #[test]
    fn no_input_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..200), first in 0..4_usize) {
        if let Some(byte) = bytes.first_mut() {
            *byte = [0x45, 0x60, 0x4f, *byte][first];
        }
        crate::fuzzing::packet(&bytes);
    }

    #[test]
    fn damaged_icmp_errors_do_not_panic(at in 0..100_usize, mask: u8, length in 0..100_usize, v6: bool) {
        let mut packet = match v6 {
            false => error("10.0.0.1:1000", "192.0.2.1:80", 3, 1, 0, 6),
            true => error("[fd00::1]:1000", "[2001:db8::1]:80", 1, 3, 0, 6),
        };
        if let Some(byte) = packet.get_mut(at) {
            *byte ^= mask;
        }
        packet.truncate(length);
        crate::fuzzing::packet(&packet);
    }
}

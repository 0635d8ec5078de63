//! Packets that are too big, missing address families, and full tables.

use super::*;

/// Checks an ICMP error with another implementation's parser. Returns the packet that it quotes.
#[track_caller]
fn check_error(
    answer: &[u8],
    from: IpAddr,
    to: IpAddr,
    kinds: [(u8, u8); 2],
    parameter: u32,
) -> Vec<u8> {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    let sliced = SlicedPacket::from_ip(answer).unwrap();
    match (sliced.net.unwrap(), sliced.transport.unwrap()) {
        (NetSlice::Ipv4(ip), TransportSlice::Icmpv4(icmp)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(
                (header.source.into(), header.destination.into()),
                (from, to)
            );
            assert_eq!((icmp.type_u8(), icmp.code_u8()), kinds[0]);
            assert_eq!(u32::from_be_bytes(icmp.bytes5to8()), parameter);
            let expected = icmp.icmp_type().calc_checksum(icmp.payload());
            assert_eq!(icmp.header().checksum, expected);
            icmp.payload().to_vec()
        }
        (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(icmp)) => {
            let header = ip.header();
            assert_eq!(
                (
                    header.source_addr().into(),
                    header.destination_addr().into()
                ),
                (from, to)
            );
            assert_eq!((icmp.type_u8(), icmp.code_u8()), kinds[1]);
            assert_eq!(u32::from_be_bytes(icmp.bytes5to8()), parameter);
            assert!(icmp.is_checksum_valid(header.source(), header.destination()));
            icmp.payload().to_vec()
        }
        other => panic!("not an ICMP error: {other:?}"),
    }
}

const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];

#[test]
fn what_must_stay_whole_is_answered_with_the_mtu() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let server = socket(family.server, 443);
        let headers = udp(local, server, b"").len();
        tunnel.send(&udp(local, server, &vec![1; 1420 - headers]));
        let packet = udp(local, server, &vec![1; 1421 - headers]);
        for (header, packet) in [
            (VirtioHeader::default(), packet.clone()),
            partial(packet.clone(), 0),
        ] {
            let (answer, reason) = tunnel.answered(header, &packet);
            assert_eq!(reason, DropReason::TooBig);
            let quoted = check_error(&answer, server.ip(), local.ip(), TOO_BIG, 1420);
            assert!(udp(local, server, &vec![1; 1421 - headers]).starts_with(&quoted));
        }
        tunnel.translator.set_mtu(1421);
        tunnel.send(&packet);
    }
}

#[test]
fn segments_that_are_too_big_are_answered_as_the_first_of_them() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let server = socket(family.server, 443);
        let payload: Vec<_> = (0..9000u32).map(|i| (i * 3) as u8).collect();
        for (whole, first) in [
            (
                tcp(local, server, ACK, &payload),
                tcp(local, server, ACK, &payload[..1400]),
            ),
            (
                udp(local, server, &payload),
                udp(local, server, &payload[..1400]),
            ),
        ] {
            let (header, packet) = partial(whole, 1400);
            let (answer, reason) = tunnel.answered(header, &packet);
            assert_eq!(reason, DropReason::TooBig);
            let quoted = check_error(&answer, server.ip(), local.ip(), TOO_BIG, 1420);
            assert!(first.starts_with(&quoted));
        }
    }
}

fn may_fragment(mut packet: Vec<u8>) -> Vec<u8> {
    packet[6] &= !0x40;
    set_v4_checksum(&mut packet);
    packet
}

/// Reassembles fragments. All lengths except the last are multiples of 8.
#[track_caller]
fn together(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = fragments[0].clone();
    for (i, fragment) in fragments.iter().enumerate() {
        assert!(fragment.len() <= 1420);
        let mut header = fragment[..20].to_vec();
        set_v4_checksum(&mut header);
        assert_eq!(header, fragment[..20]);
        let word = u16::from_be_bytes([fragment[6], fragment[7]]);
        assert_eq!(word & 0x2000 != 0, i + 1 < fragments.len());
        if i > 0 {
            assert_eq!(usize::from(word & 0x1fff) * 8, whole.len() - 20);
            whole.extend(&fragment[20..]);
        }
    }
    let len = whole.len() as u16;
    whole[2..4].copy_from_slice(&len.to_be_bytes());
    whole[6..8].fill(0);
    set_v4_checksum(&mut whole);
    whole
}

#[test]
fn what_may_be_fragmented_is() {
    let mut tunnel = Tunnel::new();
    let (local, outside) = (socket(V4.local, 5000), socket(V4.tunnel, 5000));
    let server = socket(V4.server, 443);
    let payload: Vec<_> = (0..4000u32).map(|i| (i * 5) as u8).collect();
    let sent = may_fragment(udp(local, server, &payload));
    let expected = may_fragment(udp(outside, server, &payload));
    for (header, sent) in [
        (VirtioHeader::default(), sent.clone()),
        partial(sent.clone(), 0),
    ] {
        let fragments = tunnel.instead(header, &sent);
        assert_eq!(fragments.len(), 3);
        assert_eq!(together(&fragments), expected);
    }
    // Fragments made for a link with a larger MTU.
    let mut carried = Vec::new();
    for fragment in in_fragments(&sent, 1480, 0x1234) {
        let mut fragment = fragment;
        match tunnel.outcome(VirtioHeader::default(), &mut fragment) {
            Outcome::Forward(_) => carried.push(fragment),
            Outcome::Replace(packets) => carried.extend(packets.map(<[u8]>::to_vec)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(carried.len(), 5);
    assert_eq!(together(&carried), expected);
}

#[test]
fn segments_that_may_be_fragmented_are_cut_smaller_or_fragmented() {
    let mut tunnel = Tunnel::new();
    let (local, outside) = (socket(V4.local, 5000), socket(V4.tunnel, 5000));
    let server = socket(V4.server, 443);
    let payload: Vec<_> = (0..9000u32).map(|i| (i * 3) as u8).collect();
    let (header, mut packet) = partial(may_fragment(tcp(local, server, ACK, &payload)), 1460);
    let outcome = tunnel.outcome(header, &mut packet);
    let Outcome::Forward(after) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(after.gso_size, 1380);
    let expected = partial(may_fragment(tcp(outside, server, ACK, &payload)), 1380);
    assert_eq!((after, packet), expected);

    let (header, packet) = partial(may_fragment(udp(local, server, &payload)), 3000);
    let fragments = tunnel.instead(header, &packet);
    assert_eq!(fragments.len(), 9);
    for (i, fragments) in fragments.chunks(3).enumerate() {
        let mut expected = udp(outside, server, &payload[i * 3000..(i + 1) * 3000]);
        expected[5] += i as u8;
        assert_eq!(together(fragments), may_fragment(expected));
    }
}

#[test]
fn a_checksum_in_the_ip_header_is_none() {
    let mut tunnel = Tunnel::new();
    let packet = udp(socket(V4.local, 5000), socket(V4.server, 443), &[1; 3000]);
    let (header, mut packet) = partial(may_fragment(packet), 0);
    let header = VirtioHeader {
        csum_start: 0,
        ..header
    };
    let outcome = tunnel.outcome(header, &mut packet);
    assert!(
        matches!(outcome, Outcome::Drop(DropReason::Malformed)),
        "{outcome:?}"
    );
}

#[test]
fn an_mtu_without_room_for_a_payload_carries_nothing() {
    let mut tunnel = Tunnel::with(&Settings {
        mtu: 27,
        ..settings()
    });
    let (local, server) = (socket(V4.local, 5000), socket(V4.server, 443));
    let packet = may_fragment(udp(local, server, b"x"));
    assert_eq!(tunnel.refused(&packet), DropReason::TooBig);
    let (header, mut packet) = partial(may_fragment(tcp(local, server, ACK, &[1; 3000])), 1000);
    let outcome = tunnel.outcome(header, &mut packet);
    assert!(
        matches!(outcome, Outcome::Drop(DropReason::TooBig)),
        "{outcome:?}"
    );
}

#[test]
fn a_family_that_the_tunnel_lacks_has_no_route() {
    for (family, settings) in [
        (
            V4,
            Settings {
                v4: None,
                ..settings()
            },
        ),
        (
            V6,
            Settings {
                v6: None,
                ..settings()
            },
        ),
    ] {
        let mut tunnel = Tunnel::with(&settings);
        let local = socket(family.local, 5000);
        let server = socket(family.server, 443);
        let packet = tcp(local, server, SYN, b"");
        for (header, sent) in [
            (VirtioHeader::default(), packet.clone()),
            partial(packet.clone(), 0),
        ] {
            let (answer, reason) = tunnel.answered(header, &sent);
            assert_eq!(reason, DropReason::NoAddress);
            let quoted = check_error(&answer, server.ip(), local.ip(), [(3, 0), (1, 0)], 0);
            assert_eq!(quoted, packet);
        }
        // No error about an error.
        let error = icmp_error(local.ip(), server.ip(), &packet);
        assert_eq!(tunnel.refused(&error), DropReason::NoAddress);
        let strange = udp(server, socket(family.tunnel, 5000), b"");
        assert_eq!(tunnel.try_receive(&strange), Err(DropReason::NotOurs));
    }
}

#[test]
fn a_full_table_refuses_what_is_new() {
    let mut tunnel = Tunnel::with(&Settings {
        capacity: 16,
        ..settings()
    });
    let server = socket(V4.server, 443);
    for port in 0..16 {
        tunnel.send(&udp(socket(V4.local, port), server, b"q"));
        tunnel.receive(&udp(server, socket(V4.tunnel, port), b"a"));
    }
    let more = udp(socket(V4.local, 100), server, b"q");
    assert_eq!(tunnel.refused(&more), DropReason::TableFull);
    tunnel.wait(Duration::from_secs(300));
    tunnel.send(&more);
}

/// A displaced flow is not used from the cache.
#[test]
fn what_is_remembered_is_forgotten_in_time() {
    let mut tunnel = Tunnel::with(&Settings {
        capacity: 1,
        ..settings()
    });
    let server = socket(V4.server, 443);
    let (local, outside) = (socket(V4.local, 5000), socket(V4.tunnel, 5000));
    tunnel.send(&udp(local, server, b"q"));
    tunnel.send(&udp(local, server, b"q"));
    // Another address displaces the flow and gets its port in the tunnel.
    let other = socket(V4.other, 5000);
    let mut second = tunnel.translator.outgoing();
    let mut packet = udp(other, server, b"Q");
    second.translate(tunnel.now, VirtioHeader::default(), &mut packet);
    assert_ne!(
        packet,
        udp(outside, server, b"Q"),
        "the port was taken when it was chosen"
    );
    let port = View::parse(&packet).unwrap().outgoing().local.port;
    let elsewhere = socket(V4.tunnel, port);
    assert_eq!(
        tunnel.receive(&udp(server, elsewhere, b"A")),
        udp(server, other, b"A")
    );
    // The flow has been answered now, and stays.
    assert_eq!(
        tunnel.refused(&udp(local, server, b"q")),
        DropReason::TableFull
    );
    // Replies to the first flow belong to no flow.
    let late = tunnel.try_receive(&udp(server, outside, b"a"));
    assert_eq!(late, Err(DropReason::PeerShare));
}

/// A flow that is served from the cache still counts as used in the table.
#[test]
fn what_is_remembered_does_not_expire() {
    let mut tunnel = Tunnel::new();
    let server = socket(V4.server, 443);
    let (local, outside) = (socket(V4.local, 5000), socket(V4.tunnel, 5000));
    for _ in 0..1000 {
        tunnel.send(&udp(local, server, b"q"));
        tunnel.wait(Duration::from_millis(700));
    }
    tunnel.wait(Duration::from_secs(297));
    // Without the flow, the packet would need a main uplink.
    tunnel.translator.set_main_uplink(None, None);
    assert_eq!(
        tunnel.receive(&udp(server, outside, b"a")),
        udp(server, local, b"a")
    );
}

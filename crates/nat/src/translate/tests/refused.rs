//! Packets from the tunnel that belong to no flow.

use super::*;
use crate::{flows::FlowState, fuzzing};

#[test]
fn a_listening_application_is_reached_and_answers() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 6881);
        let outside = socket(family.tunnel, 6881);
        let peer = socket(family.server, 40_000);
        for (from, to) in [
            (tcp(peer, outside, SYN, b""), tcp(peer, local, SYN, b"")),
            (udp(peer, outside, b"hello"), udp(peer, local, b"hello")),
            // A connection from before a restart.
            (
                tcp(peer, socket(family.tunnel, 1), ACK, b"more"),
                tcp(peer, socket(family.local, 1), ACK, b"more"),
            ),
        ] {
            assert_eq!(tunnel.receive(&from), to);
        }
        for (from, to) in [
            (
                tcp(local, peer, SYN | ACK, b""),
                tcp(outside, peer, SYN | ACK, b""),
            ),
            (udp(local, peer, b"welcome"), udp(outside, peer, b"welcome")),
        ] {
            assert_eq!(tunnel.send(&from), to);
        }
        assert_eq!(tunnel.translator.flow_count(), 3);
    }
}

#[test]
fn the_table_is_told_of_what_comes_in_after_the_answer() {
    let mut tunnel = Tunnel::new();
    let (local, outside) = (socket(V4.local, 6881), socket(V4.tunnel, 6881));
    let peer = socket(V4.server, 40_000);
    // A plain packet, as after a restart.
    tunnel.receive(&tcp(peer, outside, ACK, b"hello"));
    tunnel.send(&tcp(local, peer, ACK, b"welcome"));
    tunnel.receive(&tcp(peer, outside, ACK, b"thanks"));
    let mut state = tunnel.translator.shared.lock();
    let inner = View::parse(&tcp(local, peer, ACK, b"")).unwrap().outgoing();
    let index = state.table.find_inner(tunnel.now, &inner).unwrap();
    assert_eq!(state.table.flow(index).state(), FlowState::Established);
}

/// Returns the packet that transparent mode sends back.
fn find_sent_back(tunnel: &mut Tunnel, packet: &[u8]) -> Vec<u8> {
    tunnel.receive(packet)
}

#[test]
fn connections_to_nobody_are_reset() {
    for family in BOTH {
        let outside = socket(family.tunnel, 22);
        let peer = socket(family.server, 40_000);
        let payload = [7; 100];
        // Sequence number and acknowledgement by RFC 9293 section 3.10.7.1. The packets have 1,000
        // and 2,000.
        for (flags, payload, sequence, acknowledgement) in [
            (SYN, &b""[..], 0, Some(1001)),
            (SYN, b"fast open", 0, Some(1010)),
            (SYN | ACK, b"", 2000, None),
            (ACK, &payload, 2000, None),
            (FIN | ACK, b"", 2000, None),
            (FIN, b"x", 0, Some(1002)),
            (0, b"x", 0, Some(1001)),
        ] {
            let mut tunnel = Tunnel::new();
            let back = find_sent_back(&mut tunnel, &tcp(peer, outside, flags, payload));
            let carried = match payload.len() {
                // Merged into a super-packet, too.
                100 => {
                    let (header, back) = partial(back.clone(), 40);
                    tunnel.instead(header, &back)
                }
                _ => tunnel.instead(VirtioHeader::default(), &back),
            };
            let sliced = etherparse::SlicedPacket::from_ip(&carried[0]).unwrap();
            let Some(etherparse::TransportSlice::Tcp(reset)) = sliced.transport else {
                panic!("{sliced:?}");
            };
            assert_eq!(
                (reset.source_port(), reset.destination_port()),
                (22, 40_000)
            );
            assert_eq!(reset.sequence_number(), sequence, "{flags}");
            assert_eq!(
                reset.ack().then(|| reset.acknowledgment_number()),
                acknowledgement
            );
            assert!(reset.rst() && !reset.syn() && !reset.fin() && reset.payload().is_empty());
            assert!(fuzzing::is_intact(&carried[0]));
            let packet = Packet::parse(&carried[0]).unwrap();
            assert_eq!(
                (packet.source(), packet.destination()),
                (outside.ip(), peer.ip())
            );
            assert_eq!((packet.bytes().len(), carried.len()), (carried[0].len(), 1));
            // The flow is gone, and the packet is unknown when it comes back again.
            assert_eq!(tunnel.translator.flow_count(), 0);
            assert_eq!(tunnel.refused(&back), DropReason::NobodyListens);
        }
    }
}

#[test]
fn datagrams_to_nobody_are_answered_as_they_came() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let outside = socket(family.tunnel, 123);
        let peer = socket(family.server, 40_000);
        let packet = udp(peer, outside, b"is anybody there?");
        let back = find_sent_back(&mut tunnel, &packet);
        let carried = tunnel.instead(VirtioHeader::default(), &back);
        let mut expected = icmp_error(outside.ip(), peer.ip(), &packet);
        // Identification, TTL and precedence do not matter.
        if family.local == V4.local {
            expected[1] = 0xc0;
            expected[4..8].fill(0);
            expected[8] = 64;
            set_v4_checksum(&mut expected);
        } else {
            expected[7] = 64;
        }
        assert_eq!(carried, [expected.clone()]);
        // The packet's checksum was left to be completed; the quote has it complete.
        let back = find_sent_back(&mut tunnel, &packet);
        let (header, back) = partial(back, 0);
        assert_eq!(tunnel.instead(header, &back), [expected]);
        assert_eq!(tunnel.translator.flow_count(), 0);
    }
}

#[test]
fn no_answer_to_resets() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let outside = socket(family.tunnel, 22);
        let peer = socket(family.server, 40_000);
        for flags in [RST, RST | ACK] {
            let back = find_sent_back(&mut tunnel, &tcp(peer, outside, flags, b""));
            assert_eq!(tunnel.refused(&back), DropReason::NobodyListens);
        }
    }
}

/// The length of the segment is unknown until the last fragment comes.
#[test]
fn no_reset_for_the_beginning_of_a_segment() {
    let mut tunnel = Tunnel::new();
    let outside = socket(V4.tunnel, 22);
    let peer = socket(V4.server, 40_000);
    let back = find_sent_back(&mut tunnel, &tcp(peer, outside, ACK, &[1; 100]));
    let fragments = in_fragments(&back, 64, 1);
    assert_eq!(tunnel.refused(&fragments[0]), DropReason::NobodyListens);
}

#[test]
fn refusals_are_limited() {
    let mut tunnel = Tunnel::new();
    let outside = socket(V4.tunnel, 22);
    let mut answers = 0;
    for port in 0..300 {
        let packet = tcp(socket(V4.server, port), outside, SYN, b"");
        let mut back = tunnel.receive(&packet);
        match tunnel.outcome(VirtioHeader::default(), &mut back) {
            Outcome::Replace(packets) => answers += packets.count(),
            Outcome::Drop(DropReason::NobodyListens) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers, 100);
    assert_eq!(tunnel.translator.flow_count(), 0);
}

/// For example of an application that has ended.
#[test]
fn packets_of_flows_that_have_ended_here_are_refused_too() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        // The reply comes from the server that the query went to.
        let (asked, dns) = (socket(family.public_dns, 53), socket(family.dns, 53));
        tunnel.send(&udp(local, asked, b"question"));
        let answer = udp(dns, outside, b"answer");
        let back = tunnel.receive(&answer);
        let carried = tunnel.instead(VirtioHeader::default(), &back);
        let packet = Packet::parse(&carried[0]).unwrap();
        assert_eq!(
            (packet.source(), packet.destination()),
            (outside.ip(), dns.ip())
        );
        assert!(fuzzing::is_intact(&carried[0]) && carried[0].ends_with(&answer));
        assert_eq!(tunnel.translator.flow_count(), 0);
        assert_eq!(tunnel.refused(&back), DropReason::NobodyListens);
    }
}

#[test]
fn what_is_not_for_the_tunnels_address_is_dropped() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let peer = socket(family.server, 40_000);
        let outside = socket(family.tunnel, 22);
        for to in [family.local, family.dns] {
            let strange = tunnel.try_receive(&udp(peer, socket(to, 22), b""));
            assert_eq!(strange, Err(DropReason::NotOurs));
        }
        let spoofed = tunnel.try_receive(&udp(outside, outside, b""));
        assert_eq!(spoofed, Err(DropReason::OwnSource));
        tunnel.translator.set_main_uplink(None, None);
        let early = tunnel.try_receive(&udp(peer, outside, b""));
        assert_eq!(early, Err(DropReason::NoUplink));
    }
}

//! Fragmented packets from the tunnel.

use taupe_packet::ip;

use super::*;

/// Builds an IPv6 packet whose payload begins with the fragment header of a first fragment.
fn nested(packet: &[u8], id: u8) -> Vec<u8> {
    let (header, payload) = packet.split_at(ip::V6_HEADER);
    let mut nested = header.to_vec();
    let protocol = std::mem::replace(&mut nested[6], 44);
    nested[4..6].copy_from_slice(&((payload.len() + 8) as u16).to_be_bytes());
    nested.extend([protocol, 0, 0, 1, 0, 0, 0, id]);
    nested.extend(payload);
    nested
}

#[test]
fn a_fragment_within_fragments_is_refused() {
    let mut tunnel = Tunnel::new();
    let local = socket(V6.local, 5000);
    let outside = socket(V6.tunnel, 5000);
    let server = socket(V6.server, 443);
    tunnel.send(&udp(local, server, b"question"));
    let answer = udp(server, outside, &[7; 120]);
    // Both fragment headers have the same identification, or the fragments would not be
    // reassembled.
    let fragments = in_fragments(&nested(&answer, 1), 64, 1);
    for fragment in &fragments[..2] {
        assert_eq!(tunnel.arrive(fragment), Ok(None));
    }
    assert_eq!(tunnel.arrive(&fragments[2]), Err(DropReason::Malformed));
    // Without the inner header the same packet is delivered.
    for fragment in in_fragments(&answer, 64, 2) {
        tunnel.arrive(&fragment).expect("a packet of the flow");
    }
}

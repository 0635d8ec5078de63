//! Frames as applications and the network send them.

use std::net::{IpAddr, SocketAddr};

use crate::input::Input;

/// Ethernet addresses of the card and of its network's gateway.
pub(super) const CARD: [u8; 6] = [2, 0, 0, 0, 1, 10];
pub(super) const GATEWAY: [u8; 6] = [2, 0, 0, 0, 1, 1];

pub(super) const OWN: &str = "192.168.1.10";
pub(super) const OWN6: &str = "2001:db8:1::10";

/// Another host, a name server, groups, a neighbour.
pub(super) const OTHERS: [&str; 6] = [
    "198.51.100.7",
    "8.8.8.8",
    "224.0.0.251",
    "192.168.1.255",
    "255.255.255.255",
    "192.168.1.1",
];
pub(super) const OTHERS6: [&str; 6] = [
    "2001:db8:7::7",
    "2001:4860:4860::8888",
    "ff02::fb",
    "ff05::2",
    "2001:db8:1::1",
    "fd00::1",
];

/// Returns the frames of one packet of an application, in one of the forms in which a stack or a
/// driver may send it.
pub(super) fn frames_of(input: &mut Input<'_>, port: u16, words: &[u8; 8]) -> Vec<Vec<u8>> {
    let (how, shape, place) = (input.byte(), input.byte(), usize::from(input.byte()));
    let (own, others) = match how & 1 {
        0 => (OWN, OTHERS),
        _ => (OWN6, OTHERS6),
    };
    let to_port = match how & 2 {
        0 => 443,
        _ => 53,
    };
    let (from, to) = (end(own, port), end(others[place % others.len()], to_port));
    let payload = words.repeat(1 + usize::from(input.byte()));
    let segment = match how & 4 {
        0 => datagram(from, to, &payload),
        _ => tcp_segment(from, to, input.byte(), &payload),
    };
    let protocol = if how & 4 == 0 { 17 } else { 6 };
    let packets = match how & 8 {
        0 => vec![ip(from.ip(), to.ip(), protocol, &segment, None)],
        // Fragmented at any offset, in either order.
        _ => {
            let at = (8 * (1 + usize::from(input.byte()))).min(segment.len()) & !7;
            let (first, rest) = segment.split_at(at);
            let number = input.byte();
            let mut pieces = vec![
                ip(from.ip(), to.ip(), protocol, first, Some((0, true, number))),
                ip(
                    from.ip(),
                    to.ip(),
                    protocol,
                    rest,
                    Some((at as u16, false, number)),
                ),
            ];
            if how & 0x10 != 0 {
                pieces.reverse();
            }
            pieces
        }
    };
    let station = match how & 0x20 {
        0 => GATEWAY,
        _ => [0xff; 6],
    };
    let mut frames: Vec<_> = packets
        .iter()
        .map(|packet| ethernet(station, CARD, packet, shape & 3))
        .collect();
    for frame in &mut frames {
        match shape >> 4 {
            1 => frame.truncate(frame.len() - usize::from(shape & 0xf)),
            2 => frame.extend_from_slice(&[0; 32]),
            _ => {}
        }
    }
    frames
}

/// Returns a packet, or a fragment. `fragment` is its offset, a flag for more fragments, and its
/// identification.
fn ip(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    payload: &[u8],
    fragment: Option<(u16, bool, u8)>,
) -> Vec<u8> {
    let mut packet;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let (offset, more, number) = fragment.unwrap_or_default();
            let word = offset / 8 | u16::from(more) << 13;
            packet = vec![0x45, 0];
            packet.extend(((20 + payload.len()) as u16).to_be_bytes());
            packet.extend([0, number]);
            packet.extend(word.to_be_bytes());
            // The card computes the checksum.
            packet.extend([64, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // Empty destination options, before all other headers.
            let options = [
                if fragment.is_some() { 44 } else { protocol },
                0,
                1,
                4,
                0,
                0,
                0,
                0,
            ];
            let length = 8 + 8 * usize::from(fragment.is_some()) + payload.len();
            packet = vec![0x60, 0, 0, 0];
            packet.extend((length as u16).to_be_bytes());
            packet.extend([60, 64]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet.extend(options);
            if let Some((offset, more, number)) = fragment {
                packet.extend([protocol, 0]);
                packet.extend((offset | u16::from(more)).to_be_bytes());
                packet.extend([0, 0, 0, number]);
            }
        }
        _ => unreachable!("both are of one family"),
    }
    packet.extend(payload);
    packet
}

fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut segment = from.port().to_be_bytes().to_vec();
    segment.extend(to.port().to_be_bytes());
    segment.extend(((8 + payload.len()) as u16).to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    segment
}

fn tcp_segment(from: SocketAddr, to: SocketAddr, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = from.port().to_be_bytes().to_vec();
    segment.extend(to.port().to_be_bytes());
    segment.extend([0, 0, 0, 9, 0, 0, 0, 7, 0x50, flags, 2, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    segment
}

/// Returns a UDP datagram in IPv4.
pub(super) fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    ip(from.ip(), to.ip(), 17, &datagram(from, to, payload), None)
}

/// Returns a frame with `tags` VLAN tags.
pub(super) fn ethernet(to: [u8; 6], from: [u8; 6], packet: &[u8], tags: u8) -> Vec<u8> {
    let mut frame = [to, from].concat();
    for tag in 0..tags {
        frame.extend([0x81, 0, 0, tag]);
    }
    frame.extend(match packet.first().map(|byte| byte >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [8, 0],
    });
    frame.extend(packet);
    frame
}

pub(super) fn end(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

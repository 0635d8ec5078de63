//! Entry points for fuzzers: each takes any bytes and panics only on a defect.

use std::time::Duration;

use taupe_packet::{
    ip::{self, Family, Packet},
    split::Split,
    virtio::VirtioHeader,
};
use taupe_protocol::time::Instant;

use crate::translate::{Outcome, Received, Settings, Translator};

const CAPACITY: usize = 24;

/// Translates the packets that `data` describes, in both directions, and checks the results.
///
/// A control byte precedes each packet. It gives the direction, and says if addresses and checksums
/// are to be made valid. The packet's length follows.
pub fn translate(data: &[u8]) {
    let tunnel_v4 = [10, 66, 0, 2];
    let local_v4 = [192, 168, 1, 10];
    let translator = Translator::new(&Settings {
        v4: Some(tunnel_v4.into()),
        v6: Some([0xfd; 16].into()),
        mtu: 200,
        dns: vec![[10, 66, 0, 1].into()],
        capacity: CAPACITY,
    });
    translator.set_main_uplink(Some(local_v4.into()), Some([0x20; 16].into()));
    let (mut outgoing, mut incoming) = (translator.outgoing(), translator.incoming());
    let mut now = Instant(1_000_000_000_000);
    let mut rest = data;
    while let [control, len, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = tail;
        now += Duration::from_millis(u64::from(control >> 5) * 1000);
        let out = control & 1 != 0;
        let mut header = VirtioHeader::default();
        let mut packet = bytes;
        if control & 2 != 0
            && let Some((first, other)) = bytes.split_first_chunk::<{ VirtioHeader::LEN }>()
        {
            header = zerocopy::transmute!(*first);
            packet = other;
        }
        let mut packet = packet.to_vec();
        if control & 4 != 0 {
            mend(&mut packet, (!out).then_some((tunnel_v4, [0xfd; 16])));
        }
        let before = packet.clone();
        let complete = header == VirtioHeader::default() && is_intact(&before);
        if out {
            match outgoing.translate(now, header, &mut packet) {
                Outcome::Forward(header) => {
                    assert_eq!(packet.len(), before.len());
                    if complete {
                        assert!(is_intact(&packet));
                    }
                    let _ = Split::new(header, &packet).map(|split| split.count());
                }
                Outcome::Replace(packets) => {
                    for packet in packets {
                        let parsed = Packet::parse(packet).expect("a packet");
                        assert_eq!(parsed.bytes().len(), packet.len());
                    }
                }
                Outcome::Reply(answer, _) => assert!(is_intact(&answer)),
                Outcome::Drop(_) => {}
            }
        } else {
            match incoming.batch(now).translate(&mut packet) {
                Ok(Received::InPlace) => {
                    assert_eq!(packet.len(), before.len());
                    if complete {
                        assert!(is_intact(&packet));
                    }
                }
                Ok(Received::Reassembled(whole)) => {
                    let parsed = Packet::parse(&whole).expect("a packet");
                    assert_eq!(parsed.bytes().len(), whole.len());
                    assert_eq!(packet, before);
                }
                Ok(Received::Incomplete) | Err(_) => assert_eq!(packet, before),
            }
        }
        assert!(translator.flow_count() <= CAPACITY);
    }
}

/// Sets valid lengths and checksums, and a destination if one is given.
fn mend(packet: &mut [u8], destination: Option<([u8; 4], [u8; 16])>) {
    let len = packet.len();
    match packet.first_mut() {
        Some(first) if len >= ip::V4_HEADER && *first & 1 == 0 => {
            *first = 0x45;
            packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            if let Some((v4, _)) = destination {
                packet[16..20].copy_from_slice(&v4);
            }
            packet[10..12].fill(0);
            let sum = !sum(0, &packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Some(first) if len >= ip::V6_HEADER => {
            *first = 0x60;
            packet[4..6].copy_from_slice(&((len - ip::V6_HEADER) as u16).to_be_bytes());
            if let Some((_, v6)) = destination {
                packet[24..40].copy_from_slice(&v6);
            }
        }
        _ => return,
    }
    if let Some((at, field)) = checksum(packet) {
        packet[field..field + 2].fill(0);
        let sum = !transport_sum(packet, at);
        packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns true if every checksum of a packet is valid, computed from scratch.
pub(crate) fn is_intact(packet: &[u8]) -> bool {
    let Ok(view) = Packet::parse(packet) else {
        return false;
    };
    let packet = view.bytes();
    if view.family() == Family::V4 && sum(0, &packet[..view.header_len()]) != 0xffff {
        return false;
    }
    match checksum(packet) {
        Some((_, field)) if view_is_udp(view) && packet[field..field + 2] == [0, 0] => true,
        // A message of zeros only sums to 0.
        Some((at, _)) => matches!(transport_sum(packet, at), 0 | 0xffff),
        None => true,
    }
}

fn view_is_udp(view: Packet<'_>) -> bool {
    (view.transport()).is_some_and(|transport| transport.protocol == ip::UDP)
}

/// Returns the offsets of the transport header and of its checksum, if the packet is unfragmented
/// and has one.
fn checksum(packet: &[u8]) -> Option<(usize, usize)> {
    let view = Packet::parse(packet).ok()?;
    let transport = view.transport()?;
    if transport.more_fragments || transport.fragment_offset != 0 {
        return None;
    }
    let offset = match (view.family(), transport.protocol) {
        (_, ip::TCP) => 16,
        (_, ip::UDP) => 6,
        (Family::V4, ip::ICMP) | (Family::V6, ip::ICMPV6) => 2,
        _ => return None,
    };
    let field = transport.offset + offset;
    (field + 2 <= view.bytes().len()).then_some((transport.offset, field))
}

fn transport_sum(packet: &[u8], at: usize) -> u16 {
    let view = Packet::parse(packet).expect("parsed before");
    let protocol = view.transport().map_or(0, |transport| transport.protocol);
    let packet = view.bytes();
    let pseudo = match (view.family(), protocol) {
        (Family::V4, ip::ICMP) => return sum(0, &packet[at..]),
        (Family::V4, _) => &packet[12..20],
        (Family::V6, _) => &packet[8..40],
    };
    let start = sum(0, pseudo);
    let start = sum(start, &[0, protocol]);
    let start = sum(start, &((packet.len() - at) as u32).to_be_bytes());
    sum(start, &packet[at..])
}

/// Checksum by RFC 1071 section 4.1, word by word.
fn sum(start: u16, bytes: &[u8]) -> u16 {
    let mut sum = u32::from(start);
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

//! Entry points for fuzzers. Each accepts any bytes and panics only on a defect.

use std::{collections::HashMap, ops::Range};

use crate::{
    checksum::Sum,
    ecn, icmp, ip,
    merge::{Coalesce, MAX_COUNT, MAX_LEN, Merger},
    split::Split,
    virtio::VirtioHeader,
};

/// Merges the packets described by `data`, splits the result again, and compares: no packet is lost
/// or changed, and no flow is reordered.
///
/// The first byte of each packet selects one of four flows and says if the packet is corrupted.
pub fn split_merge(data: &[u8]) {
    let mut packets = Vec::new();
    let mut sequences = [0u32; 4];
    let mut rest = data;
    while let [control, length, tail @ ..] = rest {
        let flow = usize::from(control & 3);
        let mut packet = build(flow, *length, sequences[flow]);
        sequences[flow] = sequences[flow].wrapping_add(1 + u32::from(*length));
        rest = tail;
        if let (0x80.., [at, mask, tail @ ..]) = (*control, tail) {
            let at = usize::from(*at) % packet.len();
            packet[at] ^= mask;
            rest = tail;
            if control & 0x40 != 0 {
                checksum(&mut packet);
            }
        }
        packets.push(packet);
    }
    check_round_trip(&packets);
}

/// Parses `data` with every parser of this crate, as an inner packet and as a read from a TUN.
pub fn ip_parse(data: &[u8]) {
    if let Ok(packet) = ip::Packet::parse(data) {
        assert!(packet.bytes().len() <= data.len());
    }
    if let Some(answer) = icmp::error(icmp::Error::TooBig(1420), data, 1420, None) {
        let length = ip::Packet::parse(&answer).map(|packet| packet.bytes().len());
        assert_eq!(length, Ok(answer.len()));
    }
    let mut marked = data.to_vec();
    let _ = ecn::decapsulate(3, &mut marked);
    check_round_trip(std::slice::from_ref(&marked));
    if let Some((header, packet)) = data.split_first_chunk() {
        let header: [u8; VirtioHeader::LEN] = *header;
        if let Ok(split) = Split::new(zerocopy::transmute!(header), packet) {
            let mut segment = vec![0; split.segment_len()];
            for i in (0..split.count()).take(3).chain([split.count() - 1]) {
                split.write(i, &mut segment);
            }
        }
    }
}

/// A segment of one of four flows: TCP or UDP over IPv4 or IPv6.
fn build(flow: usize, length: u8, sequence: u32) -> Vec<u8> {
    let (v6, tcp) = (flow & 1 != 0, flow & 2 != 0);
    let payload = vec![length; 1 + usize::from(length)];
    let mut transport = vec![1, 2, 3, 4];
    if tcp {
        transport.extend(sequence.to_be_bytes());
        transport.extend([0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    } else {
        transport.extend((8 + payload.len() as u16).to_be_bytes());
        transport.extend([0, 0]);
    }
    transport.extend(payload);
    let protocol = if tcp { ip::TCP } else { ip::UDP };
    let mut packet = if v6 {
        let length = (transport.len() as u16).to_be_bytes();
        let mut header = vec![0x60, 0, 0, 0, length[0], length[1], protocol, 64];
        header.extend([0xfd; 32]);
        header
    } else {
        let length = (20 + transport.len() as u16).to_be_bytes();
        let mut header = vec![0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, protocol];
        header.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        header
    };
    packet.extend(transport);
    checksum(&mut packet);
    packet
}

/// Updates the checksums if the packet still has valid headers.
fn checksum(packet: &mut [u8]) {
    let Ok(view) = ip::Packet::parse(packet) else {
        return;
    };
    let length = view.bytes().len();
    let header_len = view.header_len();
    let protocol = view.protocol();
    let at = match protocol {
        ip::TCP => header_len + 16,
        ip::UDP => header_len + 6,
        _ => return,
    };
    let addresses = match view.family() {
        ip::Family::V4 => {
            packet[10..12].fill(0);
            let sum = Sum::ZERO.bytes(&packet[..header_len]).checksum();
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            12..20
        }
        ip::Family::V6 => 8..40,
    };
    if at + 2 <= length {
        packet[at..at + 2].fill(0);
        let sum = Sum::ZERO
            .pseudo_header(&packet[addresses], protocol, (length - header_len) as u16)
            .bytes(&packet[header_len..length])
            .udp_checksum();
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Merges and splits `packets`, and compares the result with `packets`.
pub(crate) fn check_round_trip(packets: &[Vec<u8>]) {
    let (mut buffer, ranges) = lay_out(packets);
    let coalesce = Coalesce {
        tcp: true,
        udp: true,
    };
    let mut merger = Merger::new();
    let mut after = Vec::new();
    for write in merger.merge(&mut buffer, &ranges, coalesce) {
        let merged = write.slices().collect::<Vec<_>>();
        assert_eq!(merged.len(), write.count());
        let merged = merged.concat();
        assert_eq!(merged.len(), write.len());
        if write.count() == 1 {
            assert_eq!(write.header(), VirtioHeader::default());
            after.push(merged);
            continue;
        }
        assert!(merged.len() <= MAX_LEN && write.count() <= MAX_COUNT);
        let split = Split::new(write.header(), &merged).expect("our own super-packet");
        assert_eq!(split.count(), write.count());
        for i in 0..split.count() {
            let mut segment = vec![0; split.segment_len()];
            let length = split.write(i, &mut segment);
            segment.truncate(length);
            after.push(segment);
        }
    }
    assert_eq!(by_flow(&after), by_flow(packets));
}

/// Concatenates packets in one buffer and returns their ranges.
pub fn lay_out(packets: &[Vec<u8>]) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut buffer = Vec::new();
    let ranges = packets.iter().map(|packet| {
        buffer.extend(packet);
        buffer.len() - packet.len()..buffer.len()
    });
    let ranges = ranges.collect();
    (buffer, ranges)
}

/// Sorts packets by flow and clears the fields that merging may change: the identification (and
/// with it the header checksum) of IPv4 packets with DF, and the sign of a checksum that is zero.
fn by_flow(packets: &[Vec<u8>]) -> HashMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut flows: HashMap<_, Vec<_>> = HashMap::new();
    for packet in packets {
        let mut packet = packet.clone();
        let mut flow = Vec::new();
        if let Ok(view) = ip::Packet::parse(&packet) {
            let hosts = match view.family() {
                ip::Family::V4 => 12..20,
                ip::Family::V6 => 8..40,
            };
            flow.extend(&packet[hosts]);
            flow.push(view.protocol());
            flow.extend(
                packet
                    .get(view.header_len()..view.header_len() + 4)
                    .unwrap_or(&[]),
            );
            let tcp_checksum = view.header_len() + 16;
            let is_tcp = view.protocol() == ip::TCP;
            if view.family() == ip::Family::V4 {
                let intact = Sum::ZERO.bytes(&packet[..view.header_len()]).folded() == 0xffff;
                if packet[6] & 0x40 != 0 && intact {
                    packet[4..6].fill(0);
                    packet[10..12].fill(0);
                } else if packet[10..12] == [0xff, 0xff] {
                    packet[10..12].fill(0);
                }
            }
            if let (true, Some([a @ 0xff, b @ 0xff])) =
                (is_tcp, packet.get_mut(tcp_checksum..tcp_checksum + 2))
            {
                (*a, *b) = (0, 0);
            }
        }
        flows.entry(flow).or_default().push(packet);
    }
    flows
}

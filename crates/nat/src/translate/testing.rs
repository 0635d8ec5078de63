//! Packets built and verified by another implementation.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    IcmpEchoHeader, Icmpv4Type, Icmpv6Type, IpHeaders, PacketBuilder, PacketBuilderStep, TcpHeader,
};
use taupe_packet::{ip, virtio::VirtioHeader};

use crate::tcp;

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn socket(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address(ip), port)
}

fn ip(from: IpAddr, to: IpAddr) -> PacketBuilderStep<IpHeaders> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = etherparse::Ipv4Header {
                source: from.octets(),
                destination: to.octets(),
                time_to_live: 61,
                identification: 0x1234,
                dont_fragment: true,
                ..Default::default()
            };
            header.header_checksum = header.calc_header_checksum();
            PacketBuilder::ip(IpHeaders::Ipv4(header, Default::default()))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 61),
        _ => panic!("two families"),
    }
}

pub(crate) fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    ip(from.ip(), to.ip())
        .udp(from.port(), to.port())
        .write(&mut packet, payload)
        .unwrap();
    packet
}

/// Builds a TCP segment with sequence number 1,000, and acknowledgement 2,000 if ACK is set.
pub(crate) fn tcp(from: SocketAddr, to: SocketAddr, flags: u8, payload: &[u8]) -> Vec<u8> {
    tcp_with(from, to, flags, &[], payload)
}

pub(crate) fn tcp_with(
    from: SocketAddr,
    to: SocketAddr,
    flags: u8,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut header = TcpHeader::new(from.port(), to.port(), 1000, 512);
    header.syn = flags & tcp::SYN != 0;
    header.fin = flags & tcp::FIN != 0;
    header.rst = flags & tcp::RST != 0;
    header.ack = flags & tcp::ACK != 0;
    header.acknowledgment_number = if header.ack { 2000 } else { 0 };
    header.set_options_raw(options).unwrap();
    let mut packet = Vec::new();
    ip(from.ip(), to.ip())
        .tcp_header(header)
        .write(&mut packet, payload)
        .unwrap();
    packet
}

pub(crate) fn echo(from: IpAddr, to: IpAddr, id: u16, request: bool) -> Vec<u8> {
    let echo = IcmpEchoHeader { id, seq: 7 };
    let mut packet = Vec::new();
    let ip = ip(from, to);
    match (from.is_ipv4(), request) {
        (true, true) => ip
            .icmpv4(Icmpv4Type::EchoRequest(echo))
            .write(&mut packet, b"12345"),
        (true, false) => ip
            .icmpv4(Icmpv4Type::EchoReply(echo))
            .write(&mut packet, b"12345"),
        (false, true) => ip
            .icmpv6(Icmpv6Type::EchoRequest(echo))
            .write(&mut packet, b"12345"),
        (false, false) => ip
            .icmpv6(Icmpv6Type::EchoReply(echo))
            .write(&mut packet, b"12345"),
    }
    .unwrap();
    packet
}

pub(crate) fn icmp_error(from: IpAddr, to: IpAddr, quoted: &[u8]) -> Vec<u8> {
    use etherparse::{icmpv4::DestUnreachableHeader, icmpv6::DestUnreachableCode};
    let mut packet = Vec::new();
    let ip = ip(from, to);
    if from.is_ipv4() {
        let kind = Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port);
        ip.icmpv4(kind).write(&mut packet, quoted).unwrap();
    } else {
        let kind = Icmpv6Type::DestinationUnreachable(DestUnreachableCode::Port);
        ip.icmpv6(kind).write(&mut packet, quoted).unwrap();
    }
    packet
}

/// Fragments a packet without DF, with `size` bytes of payload each.
pub(crate) fn in_fragments(packet: &[u8], size: usize, id: u16) -> Vec<Vec<u8>> {
    let v4 = packet[0] >> 4 == 4;
    let header_len = if v4 { ip::V4_HEADER } else { ip::V6_HEADER };
    let (header, payload) = packet.split_at(header_len);
    let count = payload.chunks(size).count();
    let fragments = payload.chunks(size).enumerate().map(|(i, part)| {
        let more = i + 1 < count;
        let mut fragment = header.to_vec();
        if v4 {
            let word = (i * size / 8) as u16 | if more { 0x2000 } else { 0 };
            fragment[2..4].copy_from_slice(&((header_len + part.len()) as u16).to_be_bytes());
            fragment[4..6].copy_from_slice(&id.to_be_bytes());
            fragment[6..8].copy_from_slice(&word.to_be_bytes());
            set_v4_checksum(&mut fragment);
        } else {
            let word = (i * size) as u16 | u16::from(more);
            fragment[4..6].copy_from_slice(&((8 + part.len()) as u16).to_be_bytes());
            let protocol = std::mem::replace(&mut fragment[6], 44);
            fragment.extend([protocol, 0]);
            fragment.extend(word.to_be_bytes());
            fragment.extend(u32::from(id).to_be_bytes());
        }
        fragment.extend(part);
        fragment
    });
    fragments.collect()
}

pub(crate) fn set_v4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !naive_sum(0, &header[..20]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Turns a complete TCP or UDP packet with a plain IP header into a packet from a TUN with
/// `NEEDS_CSUM`, to be split at `gso_size` unless that is 0.
pub(crate) fn partial(mut packet: Vec<u8>, gso_size: u16) -> (VirtioHeader, Vec<u8>) {
    let v4 = packet[0] >> 4 == 4;
    let (at, addresses, protocol) = if v4 {
        (20, 12..20, packet[9])
    } else {
        (40, 8..40, packet[6])
    };
    let is_tcp = protocol == ip::TCP;
    let offset = if is_tcp { 16 } else { 6 };
    let mut pseudo = packet[addresses].to_vec();
    pseudo.extend(((packet.len() - at) as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    let sum = naive_sum(0, &pseudo);
    packet[at + offset..at + offset + 2].copy_from_slice(&sum.to_be_bytes());
    let header = VirtioHeader {
        flags: 1,
        gso_type: match (gso_size, is_tcp, v4) {
            (0, ..) => 0,
            (_, true, true) => 1,
            (_, true, false) => 4,
            (_, false, _) => 5,
        },
        hdr_len: 0,
        gso_size,
        csum_start: at as u16,
        csum_offset: offset as u16,
    };
    (header, packet)
}

fn naive_sum(start: u16, bytes: &[u8]) -> u16 {
    let mut sum = u32::from(start);
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) * 256 + u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

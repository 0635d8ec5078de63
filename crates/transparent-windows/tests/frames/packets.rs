//! Frames built and checked by another implementation.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    IcmpEchoHeader, Icmpv4Type, Icmpv6Type, IpHeaders, NetSlice, PacketBuilder, PacketBuilderStep,
    SlicedPacket, TcpHeader, TransportSlice,
};
use taupe_transparent_windows::Medium;

pub(crate) const CARD: [u8; 6] = [2, 0, 0, 0, 1, 10];
pub(crate) const GATEWAY: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub(crate) const HOTSPOT: [u8; 6] = [2, 0, 0, 0, 2, 1];
pub(crate) const CLIENT: [u8; 6] = [2, 0, 0, 0, 2, 99];

pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;

pub(crate) fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

pub(crate) fn ethernet(from: [u8; 6], to: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    [&to[..], &from, &kind, packet].concat()
}

/// Returns the frame of a packet that an application sends by the card.
pub(crate) fn sent(packet: &[u8]) -> Vec<u8> {
    ethernet(CARD, GATEWAY, packet)
}

/// Returns the frame of a packet that the card receives.
pub(crate) fn received(packet: &[u8]) -> Vec<u8> {
    ethernet(GATEWAY, CARD, packet)
}

fn ip(from: IpAddr, to: IpAddr, whole: bool) -> PacketBuilderStep<IpHeaders> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = etherparse::Ipv4Header {
                source: from.octets(),
                destination: to.octets(),
                time_to_live: 61,
                identification: 0x1234,
                dont_fragment: whole,
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
    let step = ip(from.ip(), to.ip(), true).udp(from.port(), to.port());
    step.write(&mut packet, payload).unwrap();
    packet
}

/// Builds a datagram without "don't fragment".
pub(crate) fn loose_udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let step = ip(from.ip(), to.ip(), false).udp(from.port(), to.port());
    step.write(&mut packet, payload).unwrap();
    packet
}

pub(crate) fn tcp(from: SocketAddr, to: SocketAddr, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(from.port(), to.port(), 1000, 512);
    header.syn = flags & SYN != 0;
    header.ack = flags & ACK != 0;
    header.rst = flags & 4 != 0;
    header.fin = flags & 1 != 0;
    if header.syn {
        // The maximum segment size option with 1,460 bytes.
        header.set_options_raw(&[2, 4, 0x05, 0xb4]).unwrap();
    }
    let mut packet = Vec::new();
    let step = ip(from.ip(), to.ip(), true).tcp_header(header);
    step.write(&mut packet, payload).unwrap();
    packet
}

pub(crate) fn echo(from: &str, to: &str, id: u16, request: bool) -> Vec<u8> {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let header = IcmpEchoHeader { id, seq: 7 };
    let mut packet = Vec::new();
    let step = ip(from, to, false);
    match (from.is_ipv4(), request) {
        (true, true) => step.icmpv4(Icmpv4Type::EchoRequest(header)),
        (true, false) => step.icmpv4(Icmpv4Type::EchoReply(header)),
        (false, true) => {
            step.icmpv6(Icmpv6Type::EchoRequest(header))
                .write(&mut packet, b"ping")
                .unwrap();
            return packet;
        }
        (false, false) => {
            step.icmpv6(Icmpv6Type::EchoReply(header))
                .write(&mut packet, b"ping")
                .unwrap();
            return packet;
        }
    }
    .write(&mut packet, b"ping")
    .unwrap();
    packet
}

/// Builds an ICMP port unreachable error about `quoted`.
pub(crate) fn unreachable(from: &str, to: &str, quoted: &[u8]) -> Vec<u8> {
    use etherparse::icmpv4::DestUnreachableHeader;
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let mut packet = Vec::new();
    let kind = Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port);
    ip(from, to, false)
        .icmpv4(kind)
        .write(&mut packet, quoted)
        .unwrap();
    packet
}

/// Returns the packet with a transport checksum that the card is to complete.
pub(crate) fn left_to_the_card(mut packet: Vec<u8>) -> Vec<u8> {
    let v4 = packet[0] >> 4 == 4;
    let (at, addresses, protocol) = if v4 {
        (20, 12..20, packet[9])
    } else {
        (40, 8..40, packet[6])
    };
    let mut sum = u32::from(protocol) + (packet.len() - at) as u32;
    for pair in packet[addresses].chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let field = at + if protocol == 6 { 16 } else { 6 };
    packet[field..field + 2].copy_from_slice(&(sum as u16).to_be_bytes());
    if v4 {
        packet[10..12].fill(0);
    }
    packet
}

/// Splits a packet into fragments with `size` bytes of payload each.
pub(crate) fn in_fragments(packet: &[u8], size: usize) -> Vec<Vec<u8>> {
    let (header, payload) = packet.split_at(20);
    let count = payload.chunks(size).count();
    let cut = |(i, part): (usize, &[u8])| {
        let more = if i + 1 < count { 0x2000 } else { 0 };
        let mut header = etherparse::Ipv4Header::from_slice(header).unwrap().0;
        header.total_len = (20 + part.len()) as u16;
        header.dont_fragment = false;
        header.more_fragments = more != 0;
        header.fragment_offset = ((i * size / 8) as u16).try_into().unwrap();
        header.header_checksum = header.calc_header_checksum();
        let mut fragment = Vec::new();
        header.write(&mut fragment).unwrap();
        fragment.extend(part);
        fragment
    };
    payload.chunks(size).enumerate().map(cut).collect()
}

/// Returns the packet in a frame after checking all lengths and checksums.
pub(crate) fn checked(medium: Medium, frame: &[u8]) -> Vec<u8> {
    let sliced = match medium {
        Medium::Ethernet => SlicedPacket::from_ethernet(frame),
        Medium::Ip => SlicedPacket::from_ip(frame),
        Medium::Unknown => panic!("nobody knows what its frames are"),
    };
    let sliced = sliced.unwrap_or_else(|error| panic!("{error}: {frame:02x?}"));
    let packet = match medium {
        Medium::Ip | Medium::Unknown => frame,
        Medium::Ethernet => {
            let tags = sliced.link_exts.len() * 4;
            &frame[14 + tags..]
        }
    };
    check_packet(packet, &sliced);
    packet.to_vec()
}

fn check_packet(packet: &[u8], sliced: &SlicedPacket<'_>) {
    let addresses = match sliced.net.as_ref().expect("no IP") {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(usize::from(header.total_len), packet.len(), "length");
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            if header.is_fragmenting_payload() {
                return;
            }
            (Some((header.source, header.destination)), None)
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header().to_header();
            assert_eq!(usize::from(header.payload_length) + 40, packet.len());
            (None, Some((header.source, header.destination)))
        }
        NetSlice::Arp(_) => panic!("ARP"),
    };
    match (sliced.transport.as_ref().expect("no transport"), addresses) {
        (TransportSlice::Udp(udp), (Some((from, to)), _)) => {
            let header = udp.to_header();
            assert_eq!(usize::from(header.length), udp.payload().len() + 8);
            let sum = header.calc_checksum_ipv4_raw(from, to, udp.payload());
            assert_eq!(header.checksum, sum.unwrap());
        }
        (TransportSlice::Udp(udp), (_, Some((from, to)))) => {
            let header = udp.to_header();
            let sum = header.calc_checksum_ipv6_raw(from, to, udp.payload());
            assert_eq!(header.checksum, sum.unwrap());
        }
        (TransportSlice::Tcp(tcp), (Some((from, to)), _)) => {
            let header = tcp.to_header();
            let sum = header.calc_checksum_ipv4_raw(from, to, tcp.payload());
            assert_eq!(header.checksum, sum.unwrap());
        }
        (TransportSlice::Tcp(tcp), (_, Some((from, to)))) => {
            let header = tcp.to_header();
            let sum = header.calc_checksum_ipv6_raw(from, to, tcp.payload());
            assert_eq!(header.checksum, sum.unwrap());
        }
        (TransportSlice::Icmpv4(icmp), _) => {
            let sum = icmp.icmp_type().calc_checksum(icmp.payload());
            assert_eq!(icmp.checksum(), sum);
        }
        (TransportSlice::Icmpv6(icmp), (_, Some((from, to)))) => {
            assert!(icmp.is_checksum_valid(from, to));
        }
        (other, _) => panic!("{other:?}"),
    }
}

/// Returns both ends and the payload of a datagram.
pub(crate) fn datagram(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, Vec<u8>)> {
    let sliced = SlicedPacket::from_ip(packet).ok()?;
    let (from, to): (IpAddr, IpAddr) = match sliced.net? {
        NetSlice::Ipv4(ip) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        NetSlice::Ipv6(ip) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        NetSlice::Arp(_) => return None,
    };
    let TransportSlice::Udp(udp) = sliced.transport? else {
        return None;
    };
    Some((
        (from, udp.source_port()).into(),
        (to, udp.destination_port()).into(),
        udp.payload().to_vec(),
    ))
}

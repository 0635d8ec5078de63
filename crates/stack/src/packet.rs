//! Inner packets outside a connection's stack: demultiplexing, UDP datagrams, and ICMP errors about
//! segments of this side.

use crate::outgoing::Outgoing;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6DstUnreachable, Icmpv6Message,
    Icmpv6Packet, IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv6Packet, TcpControl, TcpPacket,
    TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};
use std::net::{IpAddr, SocketAddr};

/// Length of a UDP header, in bytes.
pub(crate) const UDP_HEADER: usize = 8;

/// Addresses and ports of a packet, from this side's view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FourTuple {
    /// This side.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
}

/// A parsed packet from the tunnel.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Incoming<'a> {
    Tcp(FourTuple),
    Udp(FourTuple, &'a [u8]),
    /// An ICMP error about a segment that this side sent.
    IcmpError(FourTuple, IcmpError),
}

/// ICMP error from a router or host about a segment of this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// Its reason.
    pub problem: IcmpProblem,
    /// The quoted sequence number of the segment.
    pub(crate) sequence: TcpSeqNumber,
}

/// Reason of an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpProblem {
    /// A router has no route to the network.
    Network,
    /// The host cannot be reached.
    Host,
    /// The host has no such port or protocol.
    Refused,
    /// The hop limit was exceeded.
    HopLimit,
    /// The path MTU in bytes.
    TooLong(usize),
}

/// Parses a packet. Returns `None` for packets that the stack does not handle, such as fragments
/// and IPv6 packets with extension headers.
pub(crate) fn parse(packet: &[u8]) -> Option<Incoming<'_>> {
    let (source, destination, protocol, payload) = header(packet)?;
    let four_tuple = |ports: (u16, u16)| FourTuple {
        remote: SocketAddr::new(source, ports.0),
        local: SocketAddr::new(destination, ports.1),
    };
    match protocol {
        // The connection's stack checks the rest.
        IpProtocol::Tcp => Some(Incoming::Tcp(four_tuple(ports(payload)?))),
        IpProtocol::Udp => {
            let udp = UdpPacket::new_checked(payload).ok()?;
            let is_intact = udp.verify_checksum(&source.into(), &destination.into());
            // The checksum is optional over IPv4 only (RFC 8200 §8.1).
            let is_there = udp.checksum() != 0 || source.is_ipv4();
            let four_tuple = four_tuple((udp.src_port(), udp.dst_port()));
            (is_intact && is_there).then(|| Incoming::Udp(four_tuple, udp.payload()))
        }
        IpProtocol::Icmp => {
            let icmp = Icmpv4Packet::new_checked(payload).ok()?;
            let code = icmp.msg_code();
            let problem = match (icmp.msg_type(), Icmpv4DstUnreachable::from(code)) {
                (Icmpv4Message::TimeExceeded, _) => IcmpProblem::HopLimit,
                (Icmpv4Message::DstUnreachable, why) => match why {
                    Icmpv4DstUnreachable::FragRequired => IcmpProblem::TooLong(
                        u16::from_be_bytes(*payload.get(6..8)?.first_chunk()?).into(),
                    ),
                    Icmpv4DstUnreachable::NetUnreachable
                    | Icmpv4DstUnreachable::DstNetUnknown
                    | Icmpv4DstUnreachable::NetProhibited
                    | Icmpv4DstUnreachable::NetUnreachToS => IcmpProblem::Network,
                    Icmpv4DstUnreachable::PortUnreachable
                    | Icmpv4DstUnreachable::ProtoUnreachable => IcmpProblem::Refused,
                    _ => IcmpProblem::Host,
                },
                _ => return None,
            };
            let is_intact = icmp.verify_checksum();
            is_intact
                .then(|| about(payload.get(8..)?, destination, problem))
                .flatten()
        }
        IpProtocol::Icmpv6 => {
            let icmp = Icmpv6Packet::new_checked(payload).ok()?;
            let code = icmp.msg_code();
            let problem = match (icmp.msg_type(), Icmpv6DstUnreachable::from(code)) {
                (Icmpv6Message::TimeExceeded, _) => IcmpProblem::HopLimit,
                (Icmpv6Message::PktTooBig, _) => {
                    IcmpProblem::TooLong(usize::try_from(icmp.pkt_too_big_mtu()).ok()?)
                }
                (Icmpv6Message::DstUnreachable, why) => match why {
                    Icmpv6DstUnreachable::NoRoute | Icmpv6DstUnreachable::RejectRoute => {
                        IcmpProblem::Network
                    }
                    Icmpv6DstUnreachable::PortUnreachable => IcmpProblem::Refused,
                    _ => IcmpProblem::Host,
                },
                _ => return None,
            };
            let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) else {
                return None;
            };
            let is_intact = icmp.verify_checksum(&source, &destination);
            let about = || about(payload.get(8..)?, destination.into(), problem);
            is_intact.then(about).flatten()
        }
        _ => None,
    }
}

/// Queues a UDP datagram. Returns false if it exceeds the MTU: the stack sends no fragments.
pub(crate) fn push_udp(
    outgoing: &mut Outgoing,
    mtu: usize,
    FourTuple { local, remote }: FourTuple,
    payload: &[u8],
) -> bool {
    let (source, destination) = (IpAddress::from(local.ip()), IpAddress::from(remote.ip()));
    if source.version() != destination.version() {
        return false;
    }
    let length = UDP_HEADER + payload.len();
    let ip = IpRepr::new(source, destination, IpProtocol::Udp, length, 64);
    let total = ip.header_len() + length;
    if total > mtu {
        return false;
    }
    let checksums = ChecksumCapabilities::default();
    outgoing.push(total, |packet| {
        ip.emit(&mut *packet, &checksums);
        let mut datagram = UdpPacket::new_unchecked(&mut packet[ip.header_len()..]);
        let udp = UdpRepr {
            src_port: local.port(),
            dst_port: remote.port(),
        };
        let fill = |room: &mut [u8]| room.copy_from_slice(payload);
        udp.emit(
            &mut datagram,
            &source,
            &destination,
            payload.len(),
            fill,
            &checksums,
        );
    });
    true
}

/// Returns a segment with these ports and nothing else.
pub(crate) fn bare_segment(src_port: u16, dst_port: u16) -> TcpRepr<'static> {
    TcpRepr {
        src_port,
        dst_port,
        control: TcpControl::None,
        seq_number: TcpSeqNumber(0),
        ack_number: None,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    }
}

/// Returns a segment as a packet.
pub(crate) fn tcp_packet(
    source: IpAddress,
    destination: IpAddress,
    segment: &TcpRepr<'_>,
) -> Vec<u8> {
    let length = segment.buffer_len();
    let ip = IpRepr::new(source, destination, IpProtocol::Tcp, length, 64);
    let mut packet = vec![0; ip.header_len() + length];
    let checksums = ChecksumCapabilities::default();
    ip.emit(&mut packet, &checksums);
    let mut tcp = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
    segment.emit(&mut tcp, &source, &destination, &checksums);
    packet
}

/// Returns source, destination, protocol and payload of a packet that is not a fragment.
fn header(packet: &[u8]) -> Option<(IpAddr, IpAddr, IpProtocol, &[u8])> {
    match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4Packet::new_checked(packet).ok()?;
            let is_complete = !ip.more_frags() && ip.frag_offset() == 0;
            let (source, destination) = (ip.src_addr(), ip.dst_addr());
            let found = (
                source.into(),
                destination.into(),
                ip.next_header(),
                ip.payload(),
            );
            is_complete.then_some(found)
        }
        6 => {
            let ip = Ipv6Packet::new_checked(packet).ok()?;
            let (source, destination) = (ip.src_addr(), ip.dst_addr());
            Some((
                source.into(),
                destination.into(),
                ip.next_header(),
                ip.payload(),
            ))
        }
        _ => None,
    }
}

/// Returns source, destination and segment of a TCP packet. Its checksum is not checked.
pub(crate) fn tcp(packet: &[u8]) -> Option<(IpAddress, IpAddress, TcpPacket<&[u8]>)> {
    let (source, destination, protocol, payload) = header(packet)?;
    let tcp = TcpPacket::new_checked(payload).ok()?;
    (protocol == IpProtocol::Tcp).then(|| (source.into(), destination.into(), tcp))
}

/// Returns true if a TCP segment opens a connection: SYN without ACK, RST or FIN.
pub(crate) fn is_syn(packet: &[u8]) -> bool {
    let tcp = tcp(packet);
    tcp.is_some_and(|(_, _, tcp)| tcp.syn() && !tcp.ack() && !tcp.rst() && !tcp.fin())
}

/// Returns the source and destination port of a TCP or UDP header.
fn ports(payload: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *payload.first_chunk()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// Reads the TCP segment that an ICMP error quotes: at least 8 bytes (RFC 792). Returns `None` unless
/// `us` sent it.
fn about(quoted: &[u8], us: IpAddr, problem: IcmpProblem) -> Option<Incoming<'static>> {
    let (source, destination, protocol, payload) = match quoted.first()? >> 4 {
        4 => {
            let length = usize::from(quoted[0] & 0xf) * 4;
            let source: [u8; 4] = *quoted.get(12..16)?.first_chunk()?;
            // A later fragment has no TCP header.
            if u16::from_be_bytes([quoted[6], quoted[7]]) & 0x1fff != 0 {
                return None;
            }
            let destination: [u8; 4] = *quoted.get(16..20)?.first_chunk()?;
            (
                source.into(),
                destination.into(),
                quoted[9],
                quoted.get(length.max(20)..)?,
            )
        }
        6 => {
            let source: [u8; 16] = *quoted.get(8..24)?.first_chunk()?;
            let destination: [u8; 16] = *quoted.get(24..40)?.first_chunk()?;
            (
                source.into(),
                destination.into(),
                quoted[6],
                quoted.get(40..)?,
            )
        }
        _ => return None,
    };
    let (local, remote) = ports(payload)?;
    let four_tuple = FourTuple {
        local: SocketAddr::new(source, local),
        remote: SocketAddr::new(destination, remote),
    };
    let sequence = i32::from_be_bytes(*payload.get(4..)?.first_chunk()?);
    let error = IcmpError {
        problem,
        sequence: TcpSeqNumber(sequence),
    };
    let is_ours = IpProtocol::from(protocol) == IpProtocol::Tcp && source == us;
    is_ours.then_some(Incoming::IcmpError(four_tuple, error))
}

#[cfg(test)]
mod tests;

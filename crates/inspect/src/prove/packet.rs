//! The addresses and ports of captured packets, which anybody may have made.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use taupe_packet::ip::{Packet, TCP, UDP};

/// EtherTypes of VLAN tags (IEEE 802.1Q, 802.1ad).
const VLAN: [u16; 2] = [0x8100, 0x88a8];

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Nested VLAN tags that are followed.
const MAX_TAGS: usize = 2;

/// Datagrams whose first fragment is remembered.
const MAX_DATAGRAMS: usize = 1024;

/// Protocols whose header begins with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u8; 5] = [TCP, UDP, 33, 132, 136];

/// Sender and receiver of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PacketFlow {
    pub(super) protocol: u8,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
}

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParsedPacket {
    pub(super) flow: PacketFlow,
    /// The packet opens a TCP connection.
    pub(super) is_syn: bool,
}

/// A fragmented datagram.
type FragmentKey = (IpAddr, IpAddr, u8, u32);

/// Parses packets, and remembers the ports of fragmented datagrams.
#[derive(Debug, Default)]
pub(super) struct Parser {
    fragmented: HashMap<FragmentKey, [u16; 2]>,
}

impl Parser {
    /// Parses a packet, which may be cut off. `None` if it is not IP.
    pub(super) fn parse(&mut self, ether_type: u16, bytes: &[u8]) -> Option<ParsedPacket> {
        let packet = ip(ether_type, bytes)?;
        let (source, destination) = (packet.source(), packet.destination());
        let flow = |protocol, [here, there]: [u16; 2]| PacketFlow {
            protocol,
            source: SocketAddr::new(source, here),
            destination: SocketAddr::new(destination, there),
        };
        let Some(transport) = packet.transport() else {
            // Extension headers that are cut off hide the protocol.
            return Some(ParsedPacket {
                flow: flow(packet.protocol(), [0; 2]),
                is_syn: false,
            });
        };
        let protocol = transport.protocol;
        let key = (source, destination, protocol, transport.identification);
        if transport.fragment_offset != 0 {
            let ports = self.fragmented.get(&key).copied().unwrap_or_default();
            return Some(ParsedPacket {
                flow: flow(protocol, ports),
                is_syn: false,
            });
        }
        let header = packet.bytes().get(transport.offset..).unwrap_or_default();
        let ports = match header {
            [a, b, c, d, ..] if WITH_PORTS.contains(&protocol) => {
                [u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])]
            }
            _ => [0; 2],
        };
        if transport.more_fragments {
            if self.fragmented.len() >= MAX_DATAGRAMS {
                self.fragmented.clear();
            }
            self.fragmented.insert(key, ports);
        }
        let flags = header.get(13).copied().unwrap_or_default();
        Some(ParsedPacket {
            flow: flow(protocol, ports),
            // SYN without ACK.
            is_syn: protocol == TCP && flags & 0x12 == 0x02,
        })
    }
}

/// Finds the IP packet behind VLAN tags. The kernel may already have removed a tag, and then still
/// calls the packet tagged.
fn ip(mut ether_type: u16, mut bytes: &[u8]) -> Option<Packet<'_>> {
    for _ in 0..=MAX_TAGS {
        if !VLAN.contains(&ether_type) {
            break;
        }
        if let Ok(packet) = Packet::parse_quoted(bytes) {
            return Some(packet);
        }
        let (tag, rest) = bytes.split_first_chunk::<4>()?;
        ether_type = u16::from_be_bytes([tag[2], tag[3]]);
        bytes = rest;
    }
    match ether_type {
        IPV4 | IPV6 => Packet::parse_quoted(bytes).ok(),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Makes an IPv4 packet.
    pub(crate) fn v4(protocol: u8, ends: [&str; 2], rest: &[u8]) -> Vec<u8> {
        let [source, destination]: [SocketAddr; 2] = ends.map(|end| end.parse().unwrap());
        let mut packet = vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, protocol, 0, 0];
        for end in [source, destination] {
            let IpAddr::V4(address) = end.ip() else {
                panic!("IPv4");
            };
            packet.extend(address.octets());
        }
        packet.extend(source.port().to_be_bytes());
        packet.extend(destination.port().to_be_bytes());
        packet.extend(rest);
        let length = u16::try_from(packet.len()).unwrap();
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet
    }

    /// Makes an IPv6 packet with these headers behind the fixed one.
    fn v6(next: u8, behind: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(u16::try_from(behind.len()).unwrap().to_be_bytes());
        packet.extend([next, 64]);
        packet.extend(Ipv6Addr::LOCALHOST.octets());
        packet.extend(Ipv6Addr::UNSPECIFIED.octets());
        packet.extend(behind);
        packet
    }

    fn parse(ether_type: u16, bytes: &[u8]) -> Option<PacketFlow> {
        let parsed = Parser::default().parse(ether_type, bytes);
        parsed.map(|parsed| parsed.flow)
    }

    const ENDS: [&str; 2] = ["192.0.2.1:1000", "198.51.100.1:53"];

    fn expected(protocol: u8) -> PacketFlow {
        let [source, destination] = ENDS.map(|end| end.parse().unwrap());
        PacketFlow {
            protocol,
            source,
            destination,
        }
    }

    #[test]
    fn tags_are_followed_or_were_removed_already() {
        let packet = v4(17, ENDS, &[0; 4]);
        assert_eq!(parse(IPV4, &packet), Some(expected(17)));
        let tagged = [&[0, 5, 8, 0][..], &packet].concat();
        assert_eq!(parse(0x8100, &tagged), Some(expected(17)));
        assert_eq!(parse(0x8100, &packet), Some(expected(17)), "removed");
        let twice = [&[0, 5, 0x81, 0][..], &tagged].concat();
        assert_eq!(parse(0x88a8, &twice), Some(expected(17)));
        let endless = [0, 0, 0x81, 0].repeat(50);
        assert_eq!(parse(0x8100, &endless), None);
        for length in 0..4 {
            assert_eq!(parse(0x8100, &[0, 5, 8][..length.min(3)]), None);
        }
    }

    #[test]
    fn later_fragments_have_the_ports_of_the_first() {
        let mut parser = Parser::default();
        let mut first = v4(17, ENDS, &[0; 4]);
        first[6] = 0x20;
        let mut later = v4(17, ["192.0.2.1:9", "198.51.100.1:9"], &[1; 4]);
        later[7] = 1;
        let unknown = parser.parse(IPV4, &later).unwrap().flow;
        assert_eq!((unknown.source.port(), unknown.destination.port()), (0, 0));
        assert_eq!(parser.parse(IPV4, &first).unwrap().flow, expected(17));
        assert_eq!(parser.parse(IPV4, &later).unwrap().flow, expected(17));
        later[5] = 8;
        assert_eq!(parser.parse(IPV4, &later).unwrap().flow.source.port(), 0);
        for number in 0..=u16::try_from(2 * MAX_DATAGRAMS).unwrap() {
            first[4..6].copy_from_slice(&number.to_be_bytes());
            parser.parse(IPV4, &first);
        }
        assert!(parser.fragmented.len() <= MAX_DATAGRAMS);
    }

    #[test]
    fn extension_headers_are_followed() {
        let udp = [0x03, 0xe8, 0, 53, 0, 8, 0, 0];
        // Hop-by-hop, then destination options.
        let behind = [
            &[60, 0, 0, 0, 0, 0, 0, 0][..],
            &[17, 0, 0, 0, 0, 0, 0, 0],
            &udp,
        ]
        .concat();
        let flow = parse(IPV6, &v6(0, &behind)).unwrap();
        assert_eq!((flow.protocol, flow.source.port()), (17, 1000));
        assert_eq!(flow.destination.port(), 53);
        // Cut off within them: the ports are unknown, and the addresses are not.
        let cut = v6(0, &behind[..9]);
        let flow = parse(IPV6, &cut).unwrap();
        assert_eq!(flow.source, SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0));
    }

    #[test]
    fn only_the_beginning_of_a_connection_is_one() {
        let mut parser = Parser::default();
        let mut packet = v4(6, ENDS, &[0; 16]);
        for (flags, is_syn) in [(0x02, true), (0x12, false), (0x10, false), (0xc2, true)] {
            packet[33] = flags;
            assert_eq!(parser.parse(IPV4, &packet).unwrap().is_syn, is_syn);
        }
        assert!(!parser.parse(IPV4, &packet[..33]).unwrap().is_syn);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut parser = Parser::default();
        let whole = [
            v4(17, ENDS, &[0xff; 40]),
            v6(0, &[0; 40]),
            v6(44, &[0xff; 24]),
        ];
        for packet in whole {
            for length in 0..=packet.len() {
                for ether_type in [IPV4, IPV6, 0x8100, 0x88a8, 0x0806, 0] {
                    parser.parse(ether_type, &packet[..length]);
                }
            }
            for at in 0..packet.len() {
                for value in [0, 1, 0x0f, 0x40, 0x4f, 0x60, 0x80, 0xff] {
                    let mut hostile = packet.clone();
                    hostile[at] = value;
                    parser.parse(IPV4, &hostile);
                    parser.parse(0x8100, &hostile);
                }
            }
        }
        let none = parse(0x0806, &[0; 28]);
        assert_eq!(none, None);
        assert!(parse(IPV4, &[0; 40]).is_none());
        let icmp = parse(IPV4, &v4(1, ENDS, &[])).unwrap();
        assert_eq!(
            icmp.source,
            SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 0)
        );
    }
}

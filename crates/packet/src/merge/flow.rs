//! Flows, and the check if a segment continues another.

use super::Coalesce;
use crate::{
    checksum::Sum,
    ip::{self, V4_HEADER, V6_HEADER, array},
    virtio::{self, VirtioHeader},
};

const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// TCP flags in the 14th byte of the header (RFC 9293 section 3.1, RFC 3168).
mod flag {
    pub(super) const FIN: u8 = 0x01;
    pub(super) const SYN: u8 = 0x02;
    pub(super) const RST: u8 = 0x04;
    pub(super) const PSH: u8 = 0x08;
    pub(super) const ACK: u8 = 0x10;
    pub(super) const URG: u8 = 0x20;
    pub(super) const CWR: u8 = 0x80;
}

/// A TCP or UDP flow in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    hosts: Hosts,
    protocol: u8,
    ports: [u8; 4],
}

/// Source and destination address as in the header; IPv4 addresses are followed by zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hosts {
    family: ip::Family,
    addresses: [u8; 32],
}

/// Result of classifying a packet.
pub(super) enum Class {
    /// The packet may be merged with others of its flow.
    Segment(Key, Segment),
    /// The packet is not merged.
    Barrier(Barrier),
}

/// The flows whose later packets must not overtake an unmerged packet.
pub(super) enum Barrier {
    /// None, because its protocol is never merged.
    Nothing,
    /// Its own flow.
    Flow(Key),
    /// All flows between its hosts, because its ports cannot be read.
    Hosts(Hosts),
    /// All flows, because the packet cannot be parsed.
    Everything,
}

impl Barrier {
    /// Returns true if later packets of flow `key` must not be merged across this packet.
    pub(super) fn stops(&self, key: &Key) -> bool {
        match self {
            Self::Nothing => false,
            Self::Flow(own) => own == key,
            Self::Hosts(hosts) => *hosts == key.hosts,
            Self::Everything => true,
        }
    }
}

/// A packet with payload that may be merged.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    family: ip::Family,
    protocol: u8,
    ip_header_len: usize,
    pub(super) header_len: usize,
    len: usize,
    sequence: u32,
    /// True if no segment may be appended after this one.
    pub(super) ends: bool,
}

/// Classifies `packet`.
pub(super) fn classify(packet: &[u8], coalesce: Coalesce) -> Class {
    let merged = |protocol| match protocol {
        ip::TCP => coalesce.tcp,
        ip::UDP => coalesce.udp,
        _ => false,
    };
    let (family, ip_header_len, protocol) = match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= V4_HEADER => {
            let total = u16::from_be_bytes(array(packet, 2));
            let protocol = packet[9];
            if usize::from(total) != packet.len() {
                return Class::Barrier(Barrier::Everything);
            }
            if !merged(protocol) {
                return Class::Barrier(Barrier::Nothing);
            }
            // No options, and in the fragmentation word only DF.
            let word = u16::from_be_bytes(array(packet, 6));
            if packet[0] & 0xf != 5 || word & !0x4000 != 0 {
                return Class::Barrier(Barrier::Hosts(hosts(ip::Family::V4, packet)));
            }
            (ip::Family::V4, V4_HEADER, protocol)
        }
        Some(6) if packet.len() >= V6_HEADER => {
            let payload = u16::from_be_bytes(array(packet, 4));
            if V6_HEADER + usize::from(payload) != packet.len() {
                return Class::Barrier(Barrier::Everything);
            }
            match packet[6] {
                protocol @ (ip::TCP | ip::UDP) if merged(protocol) => {
                    (ip::Family::V6, V6_HEADER, protocol)
                }
                ip::TCP | ip::UDP | ip::ICMPV6 => return Class::Barrier(Barrier::Nothing),
                // This may be an extension header before TCP or UDP.
                _ => return Class::Barrier(Barrier::Hosts(hosts(ip::Family::V6, packet))),
            }
        }
        _ => return Class::Barrier(Barrier::Everything),
    };
    let hosts = hosts(family, packet);
    let transport = &packet[ip_header_len..];
    let parsed = match protocol {
        ip::TCP => parse_tcp(transport),
        _ => parse_udp(transport),
    };
    match (parsed, transport.first_chunk::<4>()) {
        (Some(parsed), Some(ports)) => Class::Segment(
            Key {
                hosts,
                protocol,
                ports: *ports,
            },
            Segment {
                family,
                protocol,
                ip_header_len,
                header_len: ip_header_len + parsed.header_len,
                len: packet.len(),
                sequence: parsed.sequence,
                ends: parsed.ends,
            },
        ),
        (None, Some(ports)) => Class::Barrier(Barrier::Flow(Key {
            hosts,
            protocol,
            ports: *ports,
        })),
        (_, None) => Class::Barrier(Barrier::Hosts(hosts)),
    }
}

fn hosts(family: ip::Family, packet: &[u8]) -> Hosts {
    let mut addresses = [0; 32];
    match family {
        ip::Family::V4 => addresses[..8].copy_from_slice(&packet[12..20]),
        ip::Family::V6 => addresses.copy_from_slice(&packet[8..40]),
    }
    Hosts { family, addresses }
}

struct Parsed {
    header_len: usize,
    sequence: u32,
    ends: bool,
}

/// Returns `None` unless this is a plain segment with payload.
fn parse_tcp(transport: &[u8]) -> Option<Parsed> {
    let header = transport.first_chunk::<TCP_HEADER>()?;
    let header_len = usize::from(header[12] >> 4) * 4;
    let flags = header[13];
    let plain = flags & (flag::SYN | flag::RST | flag::URG | flag::CWR) == 0;
    if header_len < TCP_HEADER || header_len >= transport.len() || flags & flag::ACK == 0 || !plain
    {
        return None;
    }
    Some(Parsed {
        header_len,
        sequence: u32::from_be_bytes(array(header, 4)),
        ends: flags & (flag::FIN | flag::PSH) != 0,
    })
}

/// Returns `None` unless this is a datagram with payload and checksum.
fn parse_udp(transport: &[u8]) -> Option<Parsed> {
    let header = transport.first_chunk::<UDP_HEADER>()?;
    let length = usize::from(u16::from_be_bytes(array(header, 4)));
    let checksum = u16::from_be_bytes(array(header, 6));
    if length != transport.len() || length == UDP_HEADER || checksum == 0 {
        return None;
    }
    Some(Parsed {
        header_len: UDP_HEADER,
        sequence: 0,
        ends: false,
    })
}

impl Segment {
    /// Bytes of payload, at least 1.
    pub(super) fn payload_len(&self) -> usize {
        self.len - self.header_len
    }

    /// Returns true if `next` follows `count` segments of which `self` is the first, so that one
    /// header can represent them all. The packets are those from which the segments were parsed,
    /// and belong to the same flow.
    pub(super) fn continued_by(
        &self,
        packet: &[u8],
        count: usize,
        next: &Self,
        next_packet: &[u8],
    ) -> bool {
        if next.header_len != self.header_len || next.payload_len() > self.payload_len() {
            return false;
        }
        let same = |range: std::ops::Range<usize>| packet[range.clone()] == next_packet[range];
        let same_ip = match self.family {
            ip::Family::V4 => {
                let id = |packet| u16::from_be_bytes(array(packet, 4));
                let unfragmented = packet[6] & 0x40 != 0;
                // TOS; fragmentation word; TTL.
                same(1..2)
                    && same(6..9)
                    && (unfragmented || id(next_packet) == id(packet).wrapping_add(count as u16))
            }
            // Version, traffic class and flow label; hop limit.
            ip::Family::V6 => same(0..4) && same(7..8),
        };
        same_ip
            && match self.protocol {
                ip::TCP => {
                    let at = self.ip_header_len;
                    let ends = flag::FIN | flag::PSH;
                    let expected = self
                        .sequence
                        .wrapping_add((count * self.payload_len()) as u32);
                    // Acknowledgement and data offset; flags; window; urgent pointer and options.
                    next.sequence == expected
                        && same(at + 8..at + 13)
                        && (packet[at + 13] ^ next_packet[at + 13]) & !ends == 0
                        && same(at + 14..at + 16)
                        && same(at + 18..self.header_len)
                }
                _ => true,
            }
    }

    /// Returns true if the packet's checksums are correct.
    pub(super) fn is_intact(&self, packet: &[u8]) -> bool {
        let (ip, transport) = packet.split_at(self.ip_header_len);
        let ip_is_intact = match self.family {
            ip::Family::V4 => Sum::ZERO.bytes(ip).folded() == 0xffff,
            ip::Family::V6 => true,
        };
        ip_is_intact
            && self
                .pseudo_header(ip, transport.len())
                .bytes(transport)
                .folded()
                == 0xffff
    }

    /// Returns the flags that the last segment of a merged packet adds to the header.
    pub(super) fn tail_flags(&self, packet: &[u8]) -> u8 {
        match self.protocol {
            ip::TCP => packet[self.ip_header_len + 13] & (flag::FIN | flag::PSH),
            _ => 0,
        }
    }

    /// Turns the headers of `packet`, parsed as `self`, into those of a super-packet of `len`
    /// bytes. Returns the virtio header for the kernel.
    pub(super) fn extend_headers(
        &self,
        packet: &mut [u8],
        len: usize,
        tail_flags: u8,
    ) -> VirtioHeader {
        let (ip, transport) = packet.split_at_mut(self.ip_header_len);
        let transport_len = (len - self.ip_header_len) as u16;
        match self.family {
            ip::Family::V4 => {
                ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
                ip[10..12].fill(0);
                let checksum = Sum::ZERO.bytes(ip).checksum();
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            ip::Family::V6 => ip[4..6].copy_from_slice(&transport_len.to_be_bytes()),
        }
        let partial = self.pseudo_header(ip, usize::from(transport_len)).folded();
        let (gso_type, csum_offset) = match (self.protocol, self.family) {
            (ip::TCP, ip::Family::V4) => (virtio::GSO_TCPV4, 16),
            (ip::TCP, ip::Family::V6) => (virtio::GSO_TCPV6, 16),
            _ => (virtio::GSO_UDP_L4, 6),
        };
        if self.protocol == ip::TCP {
            transport[13] |= tail_flags;
        } else {
            transport[4..6].copy_from_slice(&transport_len.to_be_bytes());
        }
        transport[csum_offset..csum_offset + 2].copy_from_slice(&partial.to_be_bytes());
        VirtioHeader {
            flags: virtio::NEEDS_CSUM,
            gso_type,
            hdr_len: self.header_len as u16,
            gso_size: self.payload_len() as u16,
            csum_start: self.ip_header_len as u16,
            csum_offset: csum_offset as u16,
        }
    }

    fn pseudo_header(&self, ip: &[u8], transport_len: usize) -> Sum {
        let addresses = match self.family {
            ip::Family::V4 => &ip[12..20],
            ip::Family::V6 => &ip[8..40],
        };
        Sum::ZERO.pseudo_header(addresses, self.protocol, transport_len as u16)
    }
}

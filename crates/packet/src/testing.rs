//! A simple and slow packet builder, as a reference for the real code.

#![allow(missing_docs, reason = "the fields of headers, by their usual names")]

#[cfg(test)]
use proptest::prelude::*;

use crate::virtio::VirtioHeader;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;
pub const ECE: u8 = 64;
pub const CWR: u8 = 128;

/// The fields of a TCP segment or UDP datagram.
#[derive(Clone, Debug)]
pub struct Spec {
    pub v6: bool,
    pub tcp: bool,
    pub tos: u8,
    pub flow_label: u32,
    pub ttl: u8,
    pub id: u16,
    pub dont_fragment: bool,
    pub source: u8,
    pub ports: (u16, u16),
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    /// TCP options, a multiple of 4 bytes up to 40.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            v6: false,
            tcp: true,
            tos: 0,
            flow_label: 0x12345,
            ttl: 64,
            id: 7,
            dont_fragment: true,
            source: 1,
            ports: (443, 50_000),
            sequence: 1000,
            acknowledgement: 2000,
            flags: ACK,
            window: 512,
            options: Vec::new(),
            payload: vec![0x55; 100],
        }
    }
}

/// The one's complement sum, word by word.
fn sum(start: u16, bytes: &[u8]) -> u16 {
    let mut sum = u32::from(start);
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) * 256 + u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl Spec {
    pub fn ip_header_len(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }

    pub fn header_len(&self) -> usize {
        self.ip_header_len() + if self.tcp { 20 + self.options.len() } else { 8 }
    }

    /// The sum of an IPv4 header without options, with a checksum of zero.
    pub fn ipv4_sum(packet: &[u8]) -> u16 {
        sum(sum(0, &packet[..10]), &packet[12..20])
    }

    fn addresses(&self) -> Vec<u8> {
        if self.v6 {
            let mut addresses = vec![0xfd; 32];
            addresses[15] = self.source;
            addresses
        } else {
            vec![10, 0, 0, self.source, 10, 9, 8, 7]
        }
    }

    /// The transport header and payload, with a checksum of zero.
    fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        if self.tcp {
            bytes.extend(self.sequence.to_be_bytes());
            bytes.extend(self.acknowledgement.to_be_bytes());
            bytes.push(((20 + self.options.len()) / 4 * 16) as u8);
            bytes.push(self.flags);
            bytes.extend(self.window.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend(&self.options);
        } else {
            bytes.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            bytes.extend([0; 2]);
        }
        bytes.extend(&self.payload);
        bytes
    }

    fn pseudo_header_sum(&self) -> u16 {
        let mut pseudo = self.addresses();
        let length = (self.header_len() - self.ip_header_len() + self.payload.len()) as u32;
        pseudo.extend(length.to_be_bytes());
        pseudo.extend([0, 0, 0, if self.tcp { 6 } else { 17 }]);
        sum(0, &pseudo)
    }

    fn with_checksum(&self, checksum: u16) -> Vec<u8> {
        let mut transport = self.transport();
        let at = if self.tcp { 16 } else { 6 };
        transport[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        let mut packet = Vec::new();
        if self.v6 {
            let word = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
            packet.extend(word.to_be_bytes());
            packet.extend((transport.len() as u16).to_be_bytes());
            packet.extend([if self.tcp { 6 } else { 17 }, self.ttl]);
            packet.extend(self.addresses());
        } else {
            packet.extend([0x45, self.tos]);
            packet.extend(((20 + transport.len()) as u16).to_be_bytes());
            packet.extend(self.id.to_be_bytes());
            packet.extend([if self.dont_fragment { 0x40 } else { 0 }, 0]);
            packet.extend([self.ttl, if self.tcp { 6 } else { 17 }, 0, 0]);
            packet.extend(self.addresses());
            let checksum = !sum(0, &packet);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        packet.extend(transport);
        packet
    }

    /// The complete packet.
    pub fn bytes(&self) -> Vec<u8> {
        let mut checksum = !sum(self.pseudo_header_sum(), &self.transport());
        if checksum == 0 && !self.tcp {
            checksum = 0xffff;
        }
        self.with_checksum(checksum)
    }

    /// The packet as a super-packet to be divided into segments of `size` bytes.
    pub fn super_packet(&self, size: u16) -> (VirtioHeader, Vec<u8>) {
        let header = VirtioHeader {
            flags: 1,
            gso_type: match (self.tcp, self.v6) {
                (true, false) => 1,
                (true, true) => 4,
                (false, _) => 5,
            },
            // As in Linux for forwarded packets: more than the header's length.
            hdr_len: (self.header_len() + self.payload.len()).min(65_535) as u16,
            gso_size: size,
            csum_start: self.ip_header_len() as u16,
            csum_offset: if self.tcp { 16 } else { 6 },
        };
        (header, self.with_checksum(self.pseudo_header_sum()))
    }

    /// The segments of the super-packet.
    pub fn segments(&self, size: usize) -> Vec<Self> {
        let count = self.payload.len().div_ceil(size).max(1);
        (0..count)
            .map(|i| {
                let mut segment = self.clone();
                segment.id = self.id.wrapping_add(i as u16);
                segment.sequence = self.sequence.wrapping_add((i * size) as u32);
                if i > 0 {
                    segment.flags &= !CWR;
                }
                if i < count - 1 {
                    segment.flags &= !(FIN | PSH);
                }
                let end = self.payload.len().min((i + 1) * size);
                segment.payload = self.payload[i * size..end].to_vec();
                segment
            })
            .collect()
    }
}

/// Any packet that can be a super-packet, with up to `most` bytes of payload.
#[cfg(test)]
pub(crate) fn any_spec(most: usize) -> impl Strategy<Value = Spec> {
    let ip = (
        any::<(bool, bool, u8, u8, u16, bool)>(),
        0u32..1 << 20,
        any::<u8>(),
    );
    let transport = (
        any::<((u16, u16), u32, u32, u16)>(),
        any::<u8>(),
        0usize..=10,
    );
    let payload = prop::collection::vec(any::<u8>(), 1..=most);
    (ip, transport, payload).prop_map(|(ip, transport, payload)| {
        let ((v6, tcp, tos, ttl, id, dont_fragment), flow_label, source) = ip;
        let ((ports, sequence, acknowledgement, window), flags, options) = transport;
        Spec {
            v6,
            tcp,
            tos,
            flow_label,
            ttl,
            id,
            dont_fragment,
            source,
            ports,
            sequence,
            acknowledgement,
            flags: flags & (FIN | PSH | CWR | 64) | ACK,
            window,
            options: vec![1; options * 4],
            payload,
        }
    })
}

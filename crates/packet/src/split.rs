//! Divides a super-packet read from the TUN into packets with complete headers and checksums.
//!
//! The kernel's `hdr_len` is not used. The length of the headers is computed from the start of the
//! checksummed bytes and the TCP data offset.

use crate::{
    checksum::Sum,
    ip::{self, V4_HEADER, V6_HEADER, array},
    virtio::{self, VirtioHeader},
};

/// A packet from the TUN, ready to be written segment by segment.
///
/// A packet that needs no division is a `Split` of one segment.
#[derive(Clone, Debug)]
pub struct Split<'a> {
    packet: &'a [u8],
    plan: Plan,
}

#[derive(Clone, Debug)]
enum Plan {
    /// The packet is complete.
    Whole,
    /// Only the checksum over `start..` is missing, to be stored at `at`.
    Checksum { start: usize, at: usize },
    /// The packet has to be divided.
    Segments(Segmentation),
}

/// Error of a virtio header that contradicts its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// A segmentation type that this crate never requests from the kernel.
    #[error("virtio GSO type {0:#04x} is not supported")]
    GsoType(u8),
    /// The segment size is zero.
    #[error("the segment size is 0")]
    GsoSize,
    /// Segmentation without a partial checksum.
    #[error("segmentation without the partial checksum that it requires")]
    ChecksumMissing,
    /// The checksum field is outside the packet, or not at the protocol's offset.
    #[error("no checksum field at {start} + {offset} of {len} bytes")]
    ChecksumPlace {
        /// Offset of the checksummed bytes.
        start: usize,
        /// Offset of the checksum field from there.
        offset: usize,
        /// Bytes of the packet.
        len: usize,
    },
    /// The version of the IP header differs from the segmentation type, or the header does not end
    /// where the transport header should start.
    #[error("the IP header does not fit the segmentation type")]
    IpHeader,
    /// The length in the IP header differs from the packet's.
    #[error("the IP header gives a length of {header} bytes, but the packet has {len}")]
    IpLength {
        /// Bytes according to the header.
        header: usize,
        /// Bytes of the packet.
        len: usize,
    },
    /// The packet is a fragment and cannot be divided into segments.
    #[error("the packet is a fragment")]
    Fragment,
    /// The transport header is truncated, or its length field is below the minimum.
    #[error("the transport header of {needed} bytes does not fit the packet of {len}")]
    TransportHeader {
        /// Bytes of all headers together.
        needed: usize,
        /// Bytes of the packet.
        len: usize,
    },
}

impl<'a> Split<'a> {
    /// Checks `header` against `packet`, which must not have padding.
    ///
    /// # Errors
    ///
    /// Returns [`SplitError`] if the two contradict each other; the caller should drop the packet.
    pub fn new(header: VirtioHeader, packet: &'a [u8]) -> Result<Self, SplitError> {
        let plan = if header.gso_type != virtio::GSO_NONE {
            Plan::Segments(Segmentation::new(header, packet, packet.len())?)
        } else if header.flags & virtio::NEEDS_CSUM != 0 {
            let start = usize::from(header.csum_start);
            let offset = usize::from(header.csum_offset);
            if start + offset + 2 > packet.len() {
                return Err(SplitError::ChecksumPlace {
                    start,
                    offset,
                    len: packet.len(),
                });
            }
            Plan::Checksum {
                start,
                at: start + offset,
            }
        } else {
            Plan::Whole
        };
        Ok(Self { packet, plan })
    }

    /// Number of segments, at least 1. With a `gso_size` of 1 there are tens of thousands, so
    /// callers should write a limited number at a time.
    pub fn count(&self) -> usize {
        match &self.plan {
            Plan::Whole | Plan::Checksum { .. } => 1,
            Plan::Segments(segmentation) => segmentation.count,
        }
    }

    /// Length in bytes of every segment except the last, including headers.
    pub fn segment_len(&self) -> usize {
        match &self.plan {
            Plan::Segments(segmentation) if segmentation.count > 1 => {
                segmentation.header_len + segmentation.size
            }
            _ => self.packet.len(),
        }
    }

    /// Length in bytes of the last segment, including headers.
    pub fn last_len(&self) -> usize {
        match &self.plan {
            Plan::Whole | Plan::Checksum { .. } => self.packet.len(),
            Plan::Segments(segmentation) => {
                self.packet.len() - (segmentation.count - 1) * segmentation.size
            }
        }
    }

    /// Length in bytes of segment `i`, including headers.
    pub fn len_of(&self, i: usize) -> usize {
        if i + 1 < self.count() {
            self.segment_len()
        } else {
            self.last_len()
        }
    }

    /// Writes segment `i` to the start of `dst` and returns its length.
    ///
    /// # Panics
    ///
    /// If `i` is not below [`Split::count`], or `dst` is shorter than the segment.
    pub fn write(&self, i: usize, dst: &mut [u8]) -> usize {
        assert!(i < self.count(), "segment {i} of {}", self.count());
        match &self.plan {
            Plan::Whole => {
                dst[..self.packet.len()].copy_from_slice(self.packet);
                self.packet.len()
            }
            Plan::Checksum { start, at } => {
                let dst = &mut dst[..self.packet.len()];
                dst.copy_from_slice(self.packet);
                // The field contains the sum of the pseudo header. Like Linux, never store zero:
                // UDP must not, and TCP need not.
                let checksum = Sum::ZERO.bytes(&dst[*start..]).udp_checksum();
                dst[*at..at + 2].copy_from_slice(&checksum.to_be_bytes());
                self.packet.len()
            }
            Plan::Segments(segmentation) => {
                let (head, payload) = self.packet.split_at(segmentation.header_len);
                let start = i * segmentation.size;
                let end = payload.len().min(start + segmentation.size);
                let length = head.len() + end - start;
                let (dst_head, dst_payload) = dst[..length].split_at_mut(head.len());
                let payload = &payload[start..end];
                // The sum reads the source, because reading bytes that were just written takes
                // longer.
                segmentation.write_header(i, head, payload, dst_head);
                dst_payload.copy_from_slice(payload);
                length
            }
        }
    }
}

/// Layout of the segments of a super-packet.
#[derive(Clone, Debug)]
pub struct Segmentation {
    family: ip::Family,
    protocol: Protocol,
    ip_header_len: usize,
    /// Bytes before the payload.
    pub header_len: usize,
    /// Payload bytes per segment.
    size: usize,
    /// Number of segments, at least 1.
    pub count: usize,
    /// The sum of an IPv4 header without length, identification and checksum.
    ip_sum: Sum,
    /// The sum of the pseudo header and the transport header, without the fields that
    /// [`Self::write_header`] writes.
    base: Sum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    fn number(self) -> u8 {
        match self {
            Self::Tcp => ip::TCP,
            Self::Udp => ip::UDP,
        }
    }

    fn checksum_offset(self) -> usize {
        match self {
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }
}

/// Offset of the word with data offset and flags in the TCP header (RFC 9293 section 3.1).
const TCP_FLAGS: usize = 12;

/// TCP flags in the 14th byte of the header (RFC 9293 section 3.1, RFC 3168).
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

impl Segmentation {
    /// Checks the headers at the start of a super-packet of `len` bytes. `head` contains at least
    /// the headers.
    pub fn new(header: VirtioHeader, head: &[u8], len: usize) -> Result<Self, SplitError> {
        let ip_version = head.first().map(|byte| byte >> 4);
        let (family, protocol) = match (header.gso_type & !virtio::GSO_ECN, ip_version) {
            (virtio::GSO_TCPV4, Some(4)) => (ip::Family::V4, Protocol::Tcp),
            (virtio::GSO_TCPV6, Some(6)) => (ip::Family::V6, Protocol::Tcp),
            (virtio::GSO_UDP_L4, Some(4)) => (ip::Family::V4, Protocol::Udp),
            (virtio::GSO_UDP_L4, Some(6)) => (ip::Family::V6, Protocol::Udp),
            (virtio::GSO_TCPV4 | virtio::GSO_TCPV6 | virtio::GSO_UDP_L4, _) => {
                return Err(SplitError::IpHeader);
            }
            _ => return Err(SplitError::GsoType(header.gso_type)),
        };
        if header.gso_size == 0 {
            return Err(SplitError::GsoSize);
        }
        if header.flags & virtio::NEEDS_CSUM == 0 {
            return Err(SplitError::ChecksumMissing);
        }
        let ip_header_len = usize::from(header.csum_start);
        check_ip_header(family, protocol, ip_header_len, head, len)?;
        let header_len = header_len(protocol, ip_header_len, head, len)?;
        if usize::from(header.csum_offset) != protocol.checksum_offset() {
            return Err(SplitError::ChecksumPlace {
                start: ip_header_len,
                offset: usize::from(header.csum_offset),
                len,
            });
        }
        let size = usize::from(header.gso_size);
        let (ip, transport) = head[..header_len].split_at(ip_header_len);
        let ip_sum = match family {
            ip::Family::V4 => [2, 4, 10]
                .into_iter()
                .fold(Sum::ZERO.bytes(ip), |sum, at| sum.without(word(ip, at))),
            ip::Family::V6 => Sum::ZERO,
        };
        // The kernel stored the sum of the complete pseudo header in the place of the checksum.
        // Starting from it is also correct with routing headers, where the final destination
        // differs from the one in the IP header.
        let base = Sum::ZERO
            .bytes(transport)
            .without((len - ip_header_len) as u16);
        let written: &[usize] = match protocol {
            Protocol::Tcp => &[4, 6, TCP_FLAGS],
            Protocol::Udp => &[4],
        };
        let base = (written.iter()).fold(base, |sum, at| sum.without(word(transport, *at)));
        Ok(Self {
            family,
            protocol,
            ip_header_len,
            header_len,
            size,
            count: (len - header_len).div_ceil(size).max(1),
            ip_sum,
            base,
        })
    }

    /// Writes the headers of segment `i` to `dst`, which has the length of the headers. `payload`
    /// is the segment's payload, and `head` starts with the headers of the super-packet.
    pub fn write_header(&self, i: usize, head: &[u8], payload: &[u8], dst: &mut [u8]) {
        dst.copy_from_slice(&head[..self.header_len]);
        let (ip, transport) = dst.split_at_mut(self.ip_header_len);
        let transport_len = (transport.len() + payload.len()) as u16;
        match self.family {
            ip::Family::V4 => {
                let id = u16::from_be_bytes(array(ip, 4)).wrapping_add(i as u16);
                let total = (ip.len() + transport.len() + payload.len()) as u16;
                ip[2..4].copy_from_slice(&total.to_be_bytes());
                ip[4..6].copy_from_slice(&id.to_be_bytes());
                let checksum = self.ip_sum.word(total).word(id).checksum();
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            ip::Family::V6 => {
                let length = (ip.len() - V6_HEADER + transport.len() + payload.len()) as u16;
                ip[4..6].copy_from_slice(&length.to_be_bytes());
            }
        }
        let sum = self.base.word(transport_len).bytes(payload);
        let sum = match self.protocol {
            Protocol::Tcp => {
                let sequence = u32::from_be_bytes(array(transport, 4));
                let sequence = sequence.wrapping_add((i * self.size) as u32);
                transport[4..8].copy_from_slice(&sequence.to_be_bytes());
                if i > 0 {
                    transport[13] &= !CWR;
                }
                if i + 1 < self.count {
                    transport[13] &= !FIN_PSH;
                }
                sum.word((sequence >> 16) as u16)
                    .word(sequence as u16)
                    .word(word(transport, TCP_FLAGS))
            }
            Protocol::Udp => {
                transport[4..6].copy_from_slice(&transport_len.to_be_bytes());
                sum.word(transport_len)
            }
        };
        let at = self.protocol.checksum_offset();
        let checksum = match self.protocol {
            Protocol::Tcp => sum.checksum(),
            Protocol::Udp => sum.udp_checksum(),
        };
        transport[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Returns the word of a header at an offset.
fn word(header: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(header, at))
}

/// Checks that `head` starts with an IP header of `header_len` bytes for `protocol` whose length
/// field is `len`.
fn check_ip_header(
    family: ip::Family,
    protocol: Protocol,
    header_len: usize,
    head: &[u8],
    len: usize,
) -> Result<(), SplitError> {
    let (found, length) = match family {
        ip::Family::V4 => {
            let header = head
                .first_chunk::<V4_HEADER>()
                .ok_or(SplitError::IpHeader)?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            let transport = ip::Transport {
                protocol: header[9],
                offset: usize::from(header[0] & 0xf) * 4,
                fragment_offset: 0,
                more_fragments: fragment,
                identification: 0,
            };
            (
                transport,
                usize::from(u16::from_be_bytes([header[2], header[3]])),
            )
        }
        ip::Family::V6 => {
            let header = head
                .first_chunk::<V6_HEADER>()
                .ok_or(SplitError::IpHeader)?;
            let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
            let transport = ip::v6_transport(head).ok_or(SplitError::IpHeader)?;
            (transport, V6_HEADER + payload)
        }
    };
    if found.more_fragments || found.fragment_offset != 0 {
        return Err(SplitError::Fragment);
    }
    if found.offset < V4_HEADER || found.offset != header_len || found.protocol != protocol.number()
    {
        return Err(SplitError::IpHeader);
    }
    if length != len {
        return Err(SplitError::IpLength {
            header: length,
            len,
        });
    }
    Ok(())
}

/// Returns the bytes of the IP and transport headers together, after checking that they are within
/// `head` and `len`.
fn header_len(
    protocol: Protocol,
    ip_header_len: usize,
    head: &[u8],
    len: usize,
) -> Result<usize, SplitError> {
    let (least, transport_len) = match protocol {
        Protocol::Tcp => {
            let offset = head.get(ip_header_len + 12).map_or(0, |byte| byte >> 4);
            (20, usize::from(offset) * 4)
        }
        Protocol::Udp => (8, 8),
    };
    let needed = ip_header_len + transport_len.max(least);
    if transport_len < least || needed > head.len().min(len) {
        return Err(SplitError::TransportHeader { needed, len });
    }
    Ok(needed)
}

#[cfg(test)]
mod tests;

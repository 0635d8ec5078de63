//! Merges consecutive segments of one flow into super-packets for the TUN.
//!
//! Segments are merged only if [`crate::split`] or the kernel would divide the result into the same
//! packets again. The rules are those of the kernel's receive offload (Linux 6.18:
//! `inet_gro_flush`, `ipv6_gro_flush`, `tcp_gro_receive`, `udp_gro_receive_segment`):
//!
//! | protocol | a segment is appended to the previous ones if |
//! |---|---|
//! | IPv4 | it has no options, is not a fragment, and its header checksum is correct; TOS with ECN, TTL and DF equal those of the first; without DF its identification is the next |
//! | IPv6 | traffic class with ECN, flow label and hop limit equal those of the first |
//! | TCP | its sequence number is the next, so that nothing is merged across a loss; acknowledgement, window, all options, and all flags except FIN and PSH equal those of the first |
//! | UDP | it has a checksum and a correct length |
//! | both | its checksum is correct; it has payload, not more than the first; no segment before it was shorter |
//!
//! A segment with FIN or PSH is the last of a super-packet. Segments with SYN, RST, URG or CWR, and
//! acknowledgements without data, are never merged. Later segments of the same flow do not overtake
//! them. Nor do they overtake invalid packets and packets whose ports cannot be read. An unmerged
//! packet is written without any mark, so the kernel verifies it.
//!
//! There are differences from the kernel's rules. Less strict: the identification of an IPv4 packet
//! with DF has no meaning (RFC 6864 section 4.1) and is ignored; the kernel requires it to increase
//! by one or stay the same. Stricter: packets with IPv6 extension headers and TCP segments without
//! ACK are not merged; urgent pointers must be equal even without URG; and the limit of
//! [`MAX_COUNT`] segments applies to TCP, too.
//!
//! Payload is not copied: a [`TunWrite`] lists slices of the batch's buffer.

mod flow;

use std::{ops::Range, slice};

use arrayvec::ArrayVec;

use self::flow::{Class, Key, Segment};
use crate::virtio::VirtioHeader;

/// Maximum bytes of a merged packet, which is also the maximum of an IPv4 length field.
pub const MAX_LEN: usize = 65_535;

/// Maximum packets in one write. Linux before 6.9 refuses UDP super-packets of more than 64
/// datagrams, and the slices must fit into one `writev`.
pub const MAX_COUNT: usize = 64;

/// Maximum flows that are open at once. If there are more, the oldest is closed.
const MAX_OPEN: usize = 16;

/// The protocols that may be merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalesce {
    /// TCP segments.
    pub tcp: bool,
    /// UDP datagrams, which the kernel accepts since Linux 6.2.
    pub udp: bool,
}

/// Turns batches of packets into writes. It can be reused, and allocates only until it has
/// processed its largest batch.
#[derive(Debug, Default)]
pub struct Merger {
    groups: Vec<Group>,
    parts: Vec<Part>,
    open: ArrayVec<Open, MAX_OPEN>,
}

/// The packets of one write.
#[derive(Debug)]
struct Group {
    header: VirtioHeader,
    /// The first packet, if others may be appended.
    head: Option<Segment>,
    /// True if the first packet's checksums were verified.
    verified: bool,
    /// TCP flags to add to the first packet's.
    tail_flags: u8,
    len: usize,
    count: usize,
    /// Index of the first part, which is a complete packet; the other parts are payload.
    first: usize,
    last: usize,
}

/// A slice of the buffer, in the linked list of its group.
#[derive(Debug)]
struct Part {
    range: Range<usize>,
    next: Option<usize>,
}

/// A flow whose latest group can still grow.
#[derive(Debug)]
struct Open {
    key: Key,
    group: usize,
}

impl Merger {
    /// Returns an empty merger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Groups `packets` into writes. They are ranges of `buffer` that do not overlap, each with one
    /// IP packet without padding.
    ///
    /// Packets of one flow keep their order, and writes are in the order of their first packets.
    /// Packets that cannot be merged stay unchanged. The headers of merged packets are edited in
    /// place. Ranges outside `buffer` are skipped.
    pub fn merge<'a>(
        &'a mut self,
        buffer: &'a mut [u8],
        packets: &[Range<usize>],
        coalesce: Coalesce,
    ) -> Merged<'a> {
        self.groups.clear();
        self.parts.clear();
        self.open.clear();
        for range in packets {
            let Some(packet) = buffer.get(range.clone()) else {
                continue;
            };
            match flow::classify(packet, coalesce) {
                Class::Segment(key, segment) => self.add(buffer, range.clone(), key, segment),
                Class::Barrier(barrier) => {
                    self.open.retain(|open| !barrier.stops(&open.key));
                    self.start(range.clone(), None);
                }
            }
        }
        for group in &mut self.groups {
            if let (Some(head), 2..) = (&group.head, group.count) {
                let packet = &mut buffer[self.parts[group.first].range.clone()];
                group.header = head.extend_headers(packet, group.len, group.tail_flags);
            }
        }
        Merged {
            buffer,
            parts: &self.parts,
            groups: self.groups.iter(),
        }
    }

    /// Appends a segment to its flow's group, or starts a group with it.
    fn add(&mut self, buffer: &[u8], range: Range<usize>, key: Key, segment: Segment) {
        let ends = segment.ends;
        match self.open.iter().position(|open| open.key == key) {
            Some(at) => {
                let group = self.open[at].group;
                let appended = self.append(buffer, group, &range, &segment);
                match (appended, ends) {
                    (true, false) => {}
                    (false, false) => self.open[at].group = self.start(range, Some(segment)),
                    (true, true) => drop(self.open.remove(at)),
                    (false, true) => {
                        self.open.remove(at);
                        self.start(range, Some(segment));
                    }
                }
            }
            None => {
                let group = self.start(range, Some(segment));
                if !ends {
                    if self.open.is_full() {
                        self.open.remove(0);
                    }
                    self.open.push(Open { key, group });
                }
            }
        }
    }

    /// Appends a segment's payload to a group if it continues the group. Returns true if it does.
    fn append(
        &mut self,
        buffer: &[u8],
        group: usize,
        range: &Range<usize>,
        segment: &Segment,
    ) -> bool {
        let group = &mut self.groups[group];
        let Some(head) = &group.head else {
            return false;
        };
        let head_packet = &buffer[self.parts[group.first].range.clone()];
        let packet = &buffer[range.clone()];
        // Only the last segment may be shorter.
        let full = group.len == head.header_len + group.count * head.payload_len();
        if !full
            || group.count == MAX_COUNT
            || group.len + segment.payload_len() > MAX_LEN
            || !head.continued_by(head_packet, group.count, segment, packet)
        {
            return false;
        }
        group.verified = group.verified || head.is_intact(head_packet);
        if !group.verified || !segment.is_intact(packet) {
            return false;
        }
        group.len += segment.payload_len();
        group.count += 1;
        group.tail_flags |= segment.tail_flags(packet);
        let part = self.parts.len();
        self.parts.push(Part {
            range: range.start + segment.header_len..range.end,
            next: None,
        });
        self.parts[group.last].next = Some(part);
        group.last = part;
        true
    }

    /// Starts a group with a complete packet and returns the group's index.
    fn start(&mut self, range: Range<usize>, head: Option<Segment>) -> usize {
        let part = self.parts.len();
        self.groups.push(Group {
            header: VirtioHeader::default(),
            head,
            verified: false,
            tail_flags: 0,
            len: range.len(),
            count: 1,
            first: part,
            last: part,
        });
        self.parts.push(Part { range, next: None });
        self.groups.len() - 1
    }
}

/// Iterator over the writes of one batch, in order.
#[derive(Debug)]
pub struct Merged<'a> {
    buffer: &'a [u8],
    parts: &'a [Part],
    groups: slice::Iter<'a, Group>,
}

impl<'a> Iterator for Merged<'a> {
    type Item = TunWrite<'a>;

    fn next(&mut self) -> Option<TunWrite<'a>> {
        let group = self.groups.next()?;
        let first = &self.parts[group.first];
        Some(TunWrite {
            header: group.header,
            len: group.len,
            count: group.count,
            slices: Slices {
                first: Some(&self.buffer[first.range.clone()]),
                buffer: self.buffer,
                parts: self.parts,
                next: first.next,
            },
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.groups.size_hint()
    }
}

impl ExactSizeIterator for Merged<'_> {}

/// One packet or super-packet for a TUN.
#[derive(Clone, Debug)]
pub struct TunWrite<'a> {
    header: VirtioHeader,
    len: usize,
    count: usize,
    slices: Slices<'a>,
}

impl<'a> TunWrite<'a> {
    /// Returns a write of one unchanged packet, for example an ICMP error.
    pub fn single(packet: &'a [u8]) -> Self {
        Self {
            header: VirtioHeader::default(),
            len: packet.len(),
            count: 1,
            slices: Slices {
                first: Some(packet),
                buffer: &[],
                parts: &[],
                next: None,
            },
        }
    }

    /// The virtio header to write before the packet.
    pub fn header(&self) -> VirtioHeader {
        self.header
    }

    /// Number of packets in this write: 1 to [`MAX_COUNT`].
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of all slices together; at most [`MAX_LEN`] if there are several.
    #[expect(clippy::len_without_is_empty, reason = "there is always a packet")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes after the virtio header, in as many slices as there are packets. The first has the
    /// headers and the first packet's payload, each other slice one packet's payload.
    pub fn slices(&self) -> Slices<'a> {
        self.slices.clone()
    }
}

#[cfg(any(test, feature = "testing"))]
impl TunWrite<'_> {
    /// Changes the length of the headers in the virtio header.
    pub fn set_header_len(&mut self, len: u16) {
        self.header.hdr_len = len;
    }
}

/// Iterator over the slices of a [`TunWrite`], in order.
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    first: Option<&'a [u8]>,
    buffer: &'a [u8],
    parts: &'a [Part],
    next: Option<usize>,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.first.take().or_else(|| {
            let part = &self.parts[self.next?];
            self.next = part.next;
            Some(&self.buffer[part.range.clone()])
        })
    }
}

#[cfg(test)]
mod tests;

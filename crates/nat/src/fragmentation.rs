//! Fragmentation of packets that exceed an MTU (RFC 791 section 3.2, RFC 8200 section 4.5).

use std::hash::{BuildHasher, RandomState};

use taupe_packet::{
    checksum::Sum,
    ip::{Family, Packet, Transport, V4_HEADER, V6_HEADER},
};

/// Extension headers that must precede the fragment header (RFC 8200 section 4.5): hop-by-hop
/// options, routing, destination options.
const BEFORE: [u8; 3] = [0, 43, 60];
const FRAGMENT: u8 = 44;
const FRAGMENT_HEADER: usize = 8;

/// Minimum MTU of a link: RFC 791 section 3.2, RFC 8200 section 5.
const LEAST_V4: u16 = 68;
const LEAST_V6: u16 = 1280;

/// Generator of identification numbers. They are unpredictable, since otherwise an attacker could
/// add fragments of his own (RFC 7739).
#[derive(Debug, Default)]
pub struct Identifications {
    key: RandomState,
    count: u64,
}

impl Identifications {
    /// Returns the number for a packet.
    pub fn generate(&mut self) -> u32 {
        self.count += 1;
        self.key.hash_one(self.count) as u32
    }
}

/// A packet that can be fragmented, and the MTU.
#[derive(Clone, Copy, Debug)]
pub struct Unfragmented<'a> {
    packet: Packet<'a>,
    mtu: u16,
}

impl<'a> Unfragmented<'a> {
    /// Returns `None` if the packet is a fragment already, or if the MTU is below the minimum of a
    /// link.
    pub fn new(packet: Packet<'a>, mtu: u16) -> Option<Self> {
        let least = match packet.family() {
            Family::V4 => LEAST_V4,
            Family::V6 => LEAST_V6,
        };
        let Transport {
            fragment_offset,
            more_fragments,
            ..
        } = packet.transport()?;
        let is_unfragmented = fragment_offset == 0 && !more_fragments;
        (is_unfragmented && mtu >= least).then_some(Self { packet, mtu })
    }

    /// Splits the packet into fragments of at most the MTU. Returns `None` if that is impossible.
    pub fn fragments(self, identification: u32) -> Option<Vec<Vec<u8>>> {
        match self.packet.family() {
            Family::V4 => self.fragments_v4(identification),
            Family::V6 => self.fragments_v6(identification),
        }
    }

    fn fragments_v4(self, identification: u32) -> Option<Vec<Vec<u8>>> {
        const DONT_FRAGMENT: u8 = 0x40;
        let mut packet = self.packet.bytes().to_vec();
        let [high, low, flags, ..] = packet.get_mut(4..)? else {
            return None;
        };
        [*high, *low] = (identification as u16).to_be_bytes();
        *flags &= !DONT_FRAGMENT;
        let mut buffer = PacketBuffer::default();
        let fits = buffer.push_fragments(&packet, self.mtu.into());
        fits.then(|| buffer.packets().map(<[u8]>::to_vec).collect())
    }

    fn fragments_v6(self, identification: u32) -> Option<Vec<Vec<u8>>> {
        let (header, payload) = self.packet.bytes().split_at_checked(V6_HEADER)?;
        let precedes = |protocol: &u8| BEFORE.contains(protocol) || *protocol == FRAGMENT;
        let protocol = *header.get(6).filter(|protocol| !precedes(protocol))?;
        let room = usize::from(self.mtu).checked_sub(V6_HEADER + FRAGMENT_HEADER)? & !7;
        let mut at = 0_u16;
        let mut parts = payload.chunks(room).peekable();
        let mut fragments = Vec::new();
        while let Some(part) = parts.next() {
            let length = u16::try_from(FRAGMENT_HEADER + part.len()).ok()?;
            let word = at | u16::from(parts.peek().is_some());
            let mut fragment = header.to_vec();
            fragment[4..6].copy_from_slice(&length.to_be_bytes());
            fragment[6] = FRAGMENT;
            fragment.extend([protocol, 0]);
            fragment.extend(word.to_be_bytes());
            fragment.extend(identification.to_be_bytes());
            fragment.extend(part);
            fragments.push(fragment);
            // All fragments except the last have `room` bytes, a multiple of 8; the last may end at
            // 65,535.
            at = at.saturating_add(u16::try_from(part.len()).ok()?);
        }
        Some(fragments)
    }
}

/// A sequence of packets in a reusable buffer.
#[derive(Debug, Default)]
pub struct PacketBuffer {
    bytes: Vec<u8>,
    /// End of each packet in `bytes`.
    ends: Vec<usize>,
}

impl PacketBuffer {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(crate) fn push(&mut self, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.ends.push(self.bytes.len());
    }

    /// Returns the packets in the order in which they were added.
    pub fn packets(&self) -> Packets<'_> {
        Packets {
            buffer: self,
            next: 0,
        }
    }

    /// Adds an IPv4 packet with complete checksums, in fragments of at most `mtu` bytes (RFC 791
    /// section 3.2). Adds nothing and returns `false` if a fragment has no room for 8 bytes of
    /// payload.
    pub fn push_fragments(&mut self, packet: &[u8], mtu: usize) -> bool {
        if packet.len() <= mtu {
            self.push(packet);
            return true;
        }
        let header_len = usize::from(packet.first().map_or(0, |byte| byte & 0xf)) * 4;
        let room = mtu.saturating_sub(header_len) & !7;
        if header_len < V4_HEADER || room == 0 || packet.len() < header_len {
            return false;
        }
        let (header, payload) = packet.split_at(header_len);
        let mut first = header;
        let later = without_options(header);
        let before = u16::from_be_bytes([header[6], header[7]]);
        let (mut offset, last) = (0, payload.len());
        while offset < last {
            let end = last.min(offset + room);
            let more = if end < last { MORE } else { before & MORE };
            let word = (before & !MORE).wrapping_add((offset / 8) as u16) | more;
            let start = self.bytes.len();
            self.bytes.extend_from_slice(first);
            self.bytes.extend_from_slice(&payload[offset..end]);
            let total = (self.bytes.len() - start) as u16;
            let header = &mut self.bytes[start..start + first.len()];
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[6..8].copy_from_slice(&word.to_be_bytes());
            header[10..12].fill(0);
            let sum = Sum::ZERO.bytes(header).checksum();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            self.ends.push(self.bytes.len());
            first = &later;
            offset = end;
        }
        true
    }
}

/// The "more fragments" bit of the word that contains the offset.
const MORE: u16 = 0x2000;

/// Returns the header for later fragments. Options that are not copied into these are replaced by
/// no-operation options, so that the header keeps its length (RFC 791 section 3.1).
fn without_options(header: &[u8]) -> Vec<u8> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const COPIED: u8 = 0x80;
    let mut header = header.to_vec();
    let mut at = V4_HEADER;
    while let Some(&kind) = header.get(at) {
        let length = match (kind, header.get(at + 1)) {
            (END, _) => break,
            (NOP, _) => 1,
            (_, Some(&length)) if length >= 2 => usize::from(length),
            _ => break,
        };
        if kind & COPIED == 0 {
            let end = header.len().min(at + length);
            header[at..end].fill(NOP);
        }
        at += length;
    }
    header
}

/// Iterator over the packets of a buffer.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    buffer: &'a PacketBuffer,
    next: usize,
}

impl<'a> Iterator for Packets<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = *self.buffer.ends.get(self.next)?;
        let start = match self.next.checked_sub(1) {
            Some(previous) => self.buffer.ends[previous],
            None => 0,
        };
        self.next += 1;
        Some(&self.buffer.bytes[start..end])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use taupe_packet::ip::{self, Packet};

    use super::*;

    #[test]
    fn pieces_fit_and_make_the_whole() {
        for (version, header_len) in [(4, 20), (6, 40)] {
            let mut whole = vec![0; header_len + 3001];
            whole[0] = (version << 4) | (5 * u8::from(version == 4));
            let length = if version == 4 { 3021u16 } else { 3001 };
            let at = if version == 4 { 2 } else { 4 };
            whole[at..at + 2].copy_from_slice(&length.to_be_bytes());
            whole[if version == 4 { 9 } else { 6 }] = ip::UDP;
            for (place, byte) in whole[header_len..].iter_mut().enumerate() {
                *byte = place as u8;
            }
            let mut together: Vec<u8> = Vec::new();
            let cut = |mtu| {
                let packet = Packet::parse(&whole).unwrap();
                Unfragmented::new(packet, mtu).and_then(|packet| packet.fragments(0x0102_0304))
            };
            let pieces = cut(1280).unwrap();
            assert_eq!(pieces.len(), 3);
            for (index, piece) in pieces.iter().enumerate() {
                assert!(piece.len() <= 1280);
                let packet = Packet::parse(piece).unwrap();
                assert_eq!(packet.bytes().len(), piece.len());
                let transport = packet.transport().unwrap();
                assert_eq!(usize::from(transport.fragment_offset), together.len());
                assert_eq!(transport.more_fragments, index < 2);
                assert_eq!(transport.protocol, ip::UDP);
                let identification = if version == 4 { 0x0304 } else { 0x0102_0304 };
                assert_eq!(transport.identification, identification);
                together.extend(&piece[transport.offset..]);
            }
            assert_eq!(together, whole[header_len..]);
            // Below the minimum MTU of a link.
            assert!(cut(if version == 4 { 67 } else { 1279 }).is_none());
            // A fragment is not fragmented again.
            let packet = Packet::parse(&pieces[1]).unwrap();
            assert!(Unfragmented::new(packet, 1280).is_none());
        }
    }

    #[test]
    fn the_longest_packet_is_cut_to_its_end() {
        for (version, header_len) in [(4, 20), (6, 40)] {
            let payload = 65_535 - if version == 4 { 20 } else { 0 };
            let mut whole = vec![0; header_len + payload];
            whole[0] = (version << 4) | (5 * u8::from(version == 4));
            let at = if version == 4 { 2 } else { 4 };
            whole[at..at + 2].fill(0xff);
            whole[if version == 4 { 9 } else { 6 }] = ip::UDP;
            for mtu in [LEAST_V6, 1500, u16::MAX] {
                let packet = Packet::parse(&whole).unwrap();
                let pieces = Unfragmented::new(packet, mtu)
                    .unwrap()
                    .fragments(7)
                    .unwrap();
                let mut together = 0;
                for piece in &pieces {
                    let packet = Packet::parse(piece).unwrap();
                    assert!(piece.len() <= usize::from(mtu));
                    let transport = packet.transport().unwrap();
                    assert_eq!(usize::from(transport.fragment_offset), together % (1 << 16));
                    together += piece.len() - transport.offset;
                }
                assert_eq!(together, payload, "{version} {mtu}");
            }
        }
    }

    #[test]
    fn numbers_of_packets_cannot_be_foretold() {
        let numbers = |mut from: Identifications| [(); 8].map(|()| from.generate());
        let first = numbers(Identifications::default());
        assert_ne!(first, numbers(Identifications::default()));
        let steps = first.windows(2).map(|two| two[1].wrapping_sub(two[0]));
        assert!(!steps.clone().all(|step| Some(step) == steps.clone().next()));
    }

    #[test]
    fn later_fragments_carry_only_options_that_are_copied() {
        let mut header = vec![0x47; V4_HEADER];
        // Record route (not copied), no operation, router alert (copied), end.
        header.extend([7, 3, 4, 1, 0x94, 4, 0, 0]);
        let later = without_options(&header);
        assert_eq!(later[V4_HEADER..], [1, 1, 1, 1, 0x94, 4, 0, 0]);
    }

    proptest! {
        #[test]
        fn fragments_are_the_packet(
            payload in prop::collection::vec(any::<u8>(), 0..5000),
            options in 0usize..=10,
            mtu in 68usize..1500,
            before in 0u16..100,
            more: bool,
        ) {
            let header_len = V4_HEADER + options * 4;
            let mut packet = vec![0x40 | (header_len / 4) as u8, 0];
            packet.extend(((header_len + payload.len()) as u16).to_be_bytes());
            packet.extend([0x12, 0x34]);
            packet.extend((before | if more { MORE } else { 0 }).to_be_bytes());
            packet.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            packet.extend(vec![1; options * 4]);
            packet.extend(&payload);
            let mut buffer = PacketBuffer::default();
            prop_assert_eq!(buffer.push_fragments(&packet, mtu), true);
            let count = buffer.packets().count();
            let mut together = Vec::<u8>::new();
            for (i, fragment) in buffer.packets().enumerate() {
                prop_assert!(fragment.len() <= mtu);
                if packet.len() > mtu {
                    prop_assert_eq!(Sum::ZERO.bytes(&fragment[..header_len]).folded(), 0xffff);
                }
                let word = u16::from_be_bytes([fragment[6], fragment[7]]);
                prop_assert_eq!(usize::from(word & 0x1fff), usize::from(before) + together.len() / 8);
                prop_assert_eq!(word & MORE != 0, more || i + 1 < count);
                prop_assert_eq!(fragment.len(), usize::from(u16::from_be_bytes([fragment[2], fragment[3]])));
                together.extend(&fragment[header_len..]);
            }
            prop_assert_eq!(together, payload);
        }
    }
}

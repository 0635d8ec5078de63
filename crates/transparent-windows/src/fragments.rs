//! Fragments packets that exceed the card's MTU because they have been reassembled from fragments.

use std::hash::{BuildHasher, RandomState};

use taupe_packet::ip::{Family, Packet, Transport, V6_HEADER};

use taupe_nat::translate::Buffer;

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
#[derive(Default)]
pub(super) struct Identifications {
    key: RandomState,
    count: u64,
}

impl Identifications {
    pub(super) fn next(&mut self) -> u32 {
        self.count += 1;
        self.key.hash_one(self.count) as u32
    }
}

/// A packet that can be fragmented, and the MTU.
#[derive(Clone, Copy)]
pub(super) struct Whole<'a> {
    packet: Packet<'a>,
    mtu: u16,
}

impl<'a> Whole<'a> {
    /// Returns `None` if the packet is a fragment already, or if the MTU is below the minimum of a
    /// link.
    pub(super) fn new(packet: Packet<'a>, mtu: u16) -> Option<Self> {
        let least = match packet.version() {
            Family::V4 => LEAST_V4,
            Family::V6 => LEAST_V6,
        };
        let Transport {
            fragment_offset,
            more_fragments,
            ..
        } = packet.transport()?;
        let is_whole = fragment_offset == 0 && !more_fragments;
        (is_whole && mtu >= least).then_some(Self { packet, mtu })
    }

    /// Splits the packet into fragments of at most the MTU. Returns `None` if that is impossible.
    pub(super) fn cut(self, identification: u32) -> Option<Vec<Vec<u8>>> {
        match self.packet.version() {
            Family::V4 => self.cut_v4(identification),
            Family::V6 => self.cut_v6(identification),
        }
    }

    fn cut_v4(self, identification: u32) -> Option<Vec<Vec<u8>>> {
        const DONT_FRAGMENT: u8 = 0x40;
        let mut packet = self.packet.bytes().to_vec();
        let [high, low, flags, ..] = packet.get_mut(4..)? else {
            return None;
        };
        [*high, *low] = (identification as u16).to_be_bytes();
        *flags &= !DONT_FRAGMENT;
        let mut buffer = Buffer::default();
        let is_cut = buffer.push_fragments(&packet, self.mtu.into());
        is_cut.then(|| buffer.packets().map(<[u8]>::to_vec).collect())
    }

    fn cut_v6(self, identification: u32) -> Option<Vec<Vec<u8>>> {
        let (header, payload) = self.packet.bytes().split_at_checked(V6_HEADER)?;
        let is_before = |protocol: &u8| BEFORE.contains(protocol) || *protocol == FRAGMENT;
        let protocol = *header.get(6).filter(|protocol| !is_before(protocol))?;
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

#[cfg(test)]
mod tests {
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
                Whole::new(packet, mtu).and_then(|whole| whole.cut(0x0102_0304))
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
            assert!(Whole::new(packet, 1280).is_none());
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
                let pieces = Whole::new(packet, mtu).unwrap().cut(7).unwrap();
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
        let numbers = |mut from: Identifications| [(); 8].map(|()| from.next());
        let first = numbers(Identifications::default());
        assert_ne!(first, numbers(Identifications::default()));
        let steps = first.windows(2).map(|two| two[1].wrapping_sub(two[0]));
        assert!(!steps.clone().all(|step| Some(step) == steps.clone().next()));
    }
}

//! Packets that are longer than the card's frames, because they were put together from
//! fragments, in fragments again.

use taupe_net::ip::V6_HEADER;

use crate::translate::Buffer;

/// Extension headers that each router reads, and with them those that stand before the
/// fragments' (RFC 8200 section 4.5): hop by hop, routing, destination.
const BEFORE: [u8; 3] = [0, 43, 60];
const FRAGMENT: u8 = 44;
const FRAGMENT_HEADER: usize = 8;

/// Cuts a packet into fragments of at most `mtu` bytes. `None` when that cannot be done.
pub(super) fn cut(packet: &[u8], mtu: usize, identification: u16) -> Option<Vec<Vec<u8>>> {
    match packet.first()? >> 4 {
        4 => cut_v4(packet.to_vec(), mtu),
        _ => cut_v6(packet, mtu, identification),
    }
}

fn cut_v4(mut packet: Vec<u8>, mtu: usize) -> Option<Vec<Vec<u8>>> {
    const DONT_FRAGMENT: u8 = 0x40;
    *packet.get_mut(6)? &= !DONT_FRAGMENT;
    let mut buffer = Buffer::default();
    let is_cut = buffer.push_fragments(&packet, mtu);
    is_cut.then(|| buffer.packets().map(<[u8]>::to_vec).collect())
}

fn cut_v6(packet: &[u8], mtu: usize, identification: u16) -> Option<Vec<Vec<u8>>> {
    let (header, payload) = packet.split_at_checked(V6_HEADER)?;
    let protocol = *header
        .get(6)
        .filter(|protocol| !BEFORE.contains(protocol))?;
    let room = mtu.checked_sub(V6_HEADER + FRAGMENT_HEADER)? & !7;
    if room == 0 {
        return None;
    }
    let parts = payload.chunks(room).enumerate().map(|(index, part)| {
        let at = index * room;
        let word = at as u16 | u16::from(at + part.len() < payload.len());
        let mut fragment = header.to_vec();
        let length = (FRAGMENT_HEADER + part.len()) as u16;
        fragment[4..6].copy_from_slice(&length.to_be_bytes());
        fragment[6] = FRAGMENT;
        fragment.extend([protocol, 0]);
        fragment.extend(word.to_be_bytes());
        fragment.extend(u32::from(identification).to_be_bytes());
        fragment.extend(part);
        fragment
    });
    Some(parts.collect())
}

#[cfg(test)]
mod tests {
    use taupe_net::ip::{self, Packet};

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
            let pieces = cut(&whole, 1280, 7).unwrap();
            assert_eq!(pieces.len(), 3);
            for (index, piece) in pieces.iter().enumerate() {
                assert!(piece.len() <= 1280);
                let packet = Packet::parse(piece).unwrap();
                assert_eq!(packet.bytes().len(), piece.len());
                let transport = packet.transport().unwrap();
                assert_eq!(usize::from(transport.fragment_offset), together.len());
                assert_eq!(transport.more_fragments, index < 2);
                assert_eq!(transport.protocol, ip::UDP);
                together.extend(&piece[transport.offset..]);
            }
            assert_eq!(together, whole[header_len..]);
            assert!(cut(&whole, 44, 7).is_none_or(|pieces| version == 4 && pieces.len() > 100));
        }
    }
}

//! Checksums of captured packets. A card with checksum offload gets packets without valid
//! checksums. They are completed here, since the packet does not go to the card as it is.

use taupe_packet::{
    checksum::Sum,
    ip::{self, Family},
};

use super::packet::View;

const V4_CHECKSUM: usize = 10;

/// Returns true if a packet's checksums are valid, or if the system has left them to the card. For
/// fragments only the header's checksum is checked.
pub(super) fn are_plausible(view: &View<'_>) -> bool {
    let bytes = view.packet.bytes();
    if view.packet.family() == Family::V4 {
        let header = bytes.get(..view.packet.header_len()).unwrap_or_default();
        let is_left = word(header, V4_CHECKSUM) == 0;
        if Sum::ZERO.bytes(header).folded() != 0xffff && !is_left {
            return false;
        }
    }
    let Some((at, pseudo)) = transport(view) else {
        return true;
    };
    let segment = bytes.get(view.transport_at()..).unwrap_or_default();
    let stored = word(bytes, at);
    let no_checksum = view.packet.family() == Family::V4 && view.protocol() == ip::UDP;
    stored == 0 && no_checksum
        || pseudo.bytes(segment).folded() == 0xffff
        || stored == pseudo.folded()
}

/// Computes a packet's checksums, except a missing UDP checksum. `packet` has the length that its
/// header states.
pub(super) fn complete(packet: &mut [u8]) {
    let Some(view) = View::parse(packet) else {
        return;
    };
    let (family, header_len) = (view.packet.family(), view.packet.header_len());
    let is_udp = view.protocol() == ip::UDP;
    let start = view.transport_at();
    let fields = transport(&view);
    if family == Family::V4 {
        put(packet, V4_CHECKSUM, 0);
        let header = packet.get(..header_len).unwrap_or_default();
        put(packet, V4_CHECKSUM, Sum::ZERO.bytes(header).checksum());
    }
    let Some((at, pseudo)) = fields else {
        return;
    };
    if is_udp && family == Family::V4 && word(packet, at) == 0 {
        return;
    }
    put(packet, at, 0);
    let sum = pseudo.bytes(packet.get(start..).unwrap_or_default());
    let checksum = match is_udp {
        true => sum.udp_checksum(),
        false => sum.checksum(),
    };
    put(packet, at, checksum);
}

/// Returns the offset of the transport checksum and the sum of the pseudo-header. Returns `None` if
/// there is no checksum, or if this packet does not contain all the bytes that it covers.
fn transport(view: &View<'_>) -> Option<(usize, Sum)> {
    let bytes = view.packet.bytes();
    if view.is_fragment() {
        return None;
    }
    let (offset, has_pseudo_header) = match (view.protocol(), view.packet.family()) {
        (ip::TCP, _) => (16, true),
        (ip::UDP, _) => (6, true),
        (ip::ICMP, Family::V4) => (2, false),
        (ip::ICMPV6, Family::V6) => (2, true),
        _ => return None,
    };
    let at = view.transport_at() + offset;
    bytes.get(at..at + 2)?;
    let pseudo = if has_pseudo_header {
        let addresses = match view.packet.family() {
            Family::V4 => bytes.get(12..20)?,
            Family::V6 => bytes.get(8..40)?,
        };
        let length = u16::try_from(bytes.len() - view.transport_at()).ok()?;
        Sum::ZERO.pseudo_header(addresses, view.protocol(), length)
    } else {
        Sum::ZERO
    };
    Some((at, pseudo))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..) {
        Some([high, low, ..]) => u16::from_be_bytes([*high, *low]),
        _ => 0,
    }
}

fn put(bytes: &mut [u8], at: usize, word: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

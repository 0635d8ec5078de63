//! Answers to packets that have nowhere to go.

use std::net::IpAddr;

use crate::{
    checksum::Sum,
    ip::{self, Packet, Transport, V4_HEADER, V6_HEADER},
};

/// Bytes of an ICMP error before the packet it quotes.
const ICMP_HEADER: usize = 8;
/// The most an ICMPv4 error may have (RFC 1812 section 4.3.2.3).
const V4_MOST: usize = 576;
/// The most an ICMPv6 error may have (RFC 4443 section 2.4, c).
const V6_MOST: usize = 1280;
const HOP_LIMIT: u8 = 64;

/// The ICMP error for `packet`, an inner packet without peer or endpoint:
/// ICMPv4 host unreachable (type 3, code 1) or ICMPv6 address unreachable
/// (type 1, code 3), to be written to the TUN. `mtu`, in bytes, bounds its
/// length.
///
/// Without `from` the answer comes from the destination that could not be
/// reached. That needs no knowledge of local addresses, passes reverse path
/// filters (the route to that destination is the TUN), and is not refused as a
/// local address that arrives from outside, which an address of this machine
/// would be.
///
/// `None` for packets that must not be answered (RFC 1122 section 3.2.2,
/// RFC 4443 section 2.4): ICMP errors, fragments but the first, and packets
/// from or to more than one host or nobody; also when `mtu` has no room.
/// Limiting the rate is the caller's.
pub fn unreachable(packet: &[u8], mtu: usize, from: Option<IpAddr>) -> Option<Vec<u8>> {
    let packet = Packet::parse(packet).ok()?;
    let transport = packet.transport()?;
    if transport.fragment_offset != 0
        || is_error(packet, transport)
        || !is_one_host(packet.source())
        || !is_one_host(packet.destination())
    {
        return None;
    }
    match (from.unwrap_or(packet.destination()), packet.source()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let quote = quoted(packet.bytes(), mtu.min(V4_MOST), V4_HEADER)?;
            let length = V4_HEADER + ICMP_HEADER + quote.len();
            let mut answer = vec![0; V4_HEADER];
            answer[0] = 0x45;
            // RFC 1812 section 4.3.2.5: errors have precedence 6.
            answer[1] = packet.tos() & 0x1c | 0xc0;
            answer[2..4].copy_from_slice(&u16::try_from(length).ok()?.to_be_bytes());
            answer[8] = HOP_LIMIT;
            answer[9] = ip::ICMP;
            answer[12..16].copy_from_slice(&from.octets());
            answer[16..20].copy_from_slice(&to.octets());
            let sum = Sum::ZERO.bytes(&answer).checksum();
            answer[10..12].copy_from_slice(&sum.to_be_bytes());
            Some(with_body(answer, [3, 1], Sum::ZERO, quote))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let quote = quoted(packet.bytes(), mtu.min(V6_MOST), V6_HEADER)?;
            let length = u16::try_from(ICMP_HEADER + quote.len()).ok()?;
            let mut answer = vec![0; V6_HEADER];
            answer[0] = 0x60;
            answer[4..6].copy_from_slice(&length.to_be_bytes());
            answer[6] = ip::ICMPV6;
            answer[7] = HOP_LIMIT;
            answer[8..24].copy_from_slice(&from.octets());
            answer[24..40].copy_from_slice(&to.octets());
            let sum = Sum::ZERO.pseudo_header(&answer[8..40], ip::ICMPV6, length);
            Some(with_body(answer, [1, 3], sum, quote))
        }
        _ => None,
    }
}

/// As much of the packet as the answer has room for, at least its header and
/// the 8 bytes that hold the ports.
fn quoted(packet: &[u8], most: usize, header: usize) -> Option<&[u8]> {
    let room = most.checked_sub(header + ICMP_HEADER)?;
    (room >= packet.len().min(header + 8)).then(|| &packet[..packet.len().min(room)])
}

fn with_body(mut answer: Vec<u8>, kind_and_code: [u8; 2], sum: Sum, quote: &[u8]) -> Vec<u8> {
    let sum = sum
        .word(u16::from_be_bytes(kind_and_code))
        .bytes(quote)
        .checksum();
    answer.extend(kind_and_code);
    answer.extend(sum.to_be_bytes());
    answer.extend([0; 4]);
    answer.extend(quote);
    answer
}

/// Whether the packet is an ICMP error, or so cut that it may be one.
fn is_error(packet: Packet<'_>, transport: Transport) -> bool {
    let kind = packet.bytes().get(transport.offset);
    match transport.protocol {
        // Queries are echo, router discovery, timestamp, information, mask:
        // RFC 1122 section 3.2.2 lists the errors.
        ip::ICMP => kind.is_none_or(|kind| matches!(kind, 3 | 4 | 5 | 11 | 12)),
        // RFC 4443 section 2.1: errors have a clear high bit. Redirects
        // (137) must not be answered either.
        ip::ICMPV6 => kind.is_none_or(|&kind| kind < 128 || kind == 137),
        _ => false,
    }
}

fn is_one_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

#[cfg(test)]
mod tests;

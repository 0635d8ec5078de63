//! ICMP errors for packets that cannot be delivered.

use std::net::IpAddr;

use crate::{
    checksum::Sum,
    ip::{self, Packet, Transport, V4_HEADER, V6_HEADER},
};

/// Bytes of an ICMP error before the quoted packet.
const ICMP_HEADER: usize = 8;
/// Maximum bytes of an ICMPv4 error (RFC 1812 section 4.3.2.3).
const V4_MOST: usize = 576;
/// Maximum bytes of an ICMPv6 error (RFC 4443 section 2.4, c).
const V6_MOST: usize = 1280;
const HOP_LIMIT: u8 = 64;

/// An ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The host is unreachable: ICMPv4 type 3, code 1; ICMPv6 type 1, code 3.
    HostUnreachable,
    /// There is no route to the network: ICMPv4 type 3, code 0; ICMPv6 type 1, code 0.
    NoRoute,
    /// No socket is bound to the port: ICMPv4 type 3, code 3; ICMPv6 type 1, code 4.
    PortUnreachable,
    /// The packet exceeds the next link's MTU, given in bytes, and must not be fragmented: ICMPv4
    /// type 3, code 4 (RFC 1191); ICMPv6 type 2.
    TooBig(u16),
}

impl Error {
    /// Returns type and code of ICMPv4.
    fn v4(self) -> [u8; 2] {
        match self {
            Self::HostUnreachable => [3, 1],
            Self::NoRoute => [3, 0],
            Self::PortUnreachable => [3, 3],
            Self::TooBig(_) => [3, 4],
        }
    }

    /// Returns type and code of ICMPv6.
    fn v6(self) -> [u8; 2] {
        match self {
            Self::HostUnreachable => [1, 3],
            Self::NoRoute => [1, 0],
            Self::PortUnreachable => [1, 4],
            Self::TooBig(_) => [2, 0],
        }
    }

    /// Returns the last 16 bits before the quoted packet. ICMPv6 has 32 bits for the MTU; the first
    /// 16 are zero for every packet without a jumbo header.
    fn parameter(self) -> u16 {
        match self {
            Self::TooBig(mtu) => mtu,
            Self::HostUnreachable | Self::NoRoute | Self::PortUnreachable => 0,
        }
    }
}

/// Returns the ICMP error for `packet`, an inner packet that cannot be delivered. The caller writes
/// the error to the TUN. `mtu`, in bytes, limits its length.
///
/// If `from` is `None`, the source address is the unreachable destination. This needs no knowledge
/// of local addresses and passes reverse path filters, because the route to that destination is the
/// TUN. An address of this machine as the source would be rejected as a martian.
///
/// Returns `None` for packets that must not be answered (RFC 1122 section 3.2.2, RFC 4443 section
/// 2.4): ICMP errors, fragments other than the first, and packets whose source or destination is
/// multicast, broadcast or unspecified. Also returns `None` if `mtu` is too small. The caller
/// limits the rate.
pub fn error(error: Error, packet: &[u8], mtu: usize, from: Option<IpAddr>) -> Option<Vec<u8>> {
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
            Some(with_body(answer, error.v4(), error, Sum::ZERO, quote))
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
            Some(with_body(answer, error.v6(), error, sum, quote))
        }
        _ => None,
    }
}

/// Returns as much of the packet as fits into the answer; `None` if not even the header and the 8
/// bytes with the ports fit.
fn quoted(packet: &[u8], most: usize, header: usize) -> Option<&[u8]> {
    let room = most.checked_sub(header + ICMP_HEADER)?;
    (room >= packet.len().min(header + 8)).then(|| &packet[..packet.len().min(room)])
}

fn with_body(
    mut answer: Vec<u8>,
    kind_and_code: [u8; 2],
    error: Error,
    sum: Sum,
    quote: &[u8],
) -> Vec<u8> {
    let parameter = error.parameter();
    let sum = sum
        .word(u16::from_be_bytes(kind_and_code))
        .word(parameter)
        .bytes(quote)
        .checksum();
    answer.extend(kind_and_code);
    answer.extend(sum.to_be_bytes());
    answer.extend([0; 2]);
    answer.extend(parameter.to_be_bytes());
    answer.extend(quote);
    answer
}

/// Returns true if the packet is an ICMP error, or is cut off before its type.
fn is_error(packet: Packet<'_>, transport: Transport) -> bool {
    let kind = packet.bytes().get(transport.offset);
    match transport.protocol {
        // Queries are echo, router discovery, timestamp, information and mask. RFC 1122 section
        // 3.2.2 lists the errors.
        ip::ICMP => kind.is_none_or(|kind| matches!(kind, 3 | 4 | 5 | 11 | 12)),
        // RFC 4443 section 2.1: errors have a clear high bit. Redirects (137) must not be answered
        // either.
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

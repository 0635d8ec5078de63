//! Builds frames around sealed messages: link header, IP (RFC 791, RFC 8200), UDP (RFC 768).

use std::net::{IpAddr, SocketAddr};

use taupe_packet::{
    checksum::Sum,
    ip::{self, Family, V4_HEADER, V6_HEADER},
};

use super::{link, paths::EndpointPath};

const UDP_HEADER: usize = 8;

/// Room for all headers before a message.
pub(super) const HEADROOM: usize = link::LONGEST + V6_HEADER + UDP_HEADER;

/// Returns the length of the IP and UDP headers for this endpoint.
pub(super) fn headers_len(to: SocketAddr) -> usize {
    UDP_HEADER
        + match to {
            SocketAddr::V4(_) => V4_HEADER,
            SocketAddr::V6(_) => V6_HEADER,
        }
}

/// Writes headers before the message that begins after [`HEADROOM`] bytes of `buffer`, and returns
/// the start of the frame. Returns `None` if the path has another family, or the message exceeds
/// the maximum length of a datagram.
pub(super) fn frame(
    buffer: &mut [u8],
    path: &EndpointPath,
    to: SocketAddr,
    port: u16,
    tos: u8,
    identification: u16,
) -> Option<usize> {
    let (headers, message) = buffer.split_at_mut_checked(HEADROOM)?;
    let udp_len = u16::try_from(UDP_HEADER + message.len()).ok()?;
    let (rest, udp) = headers.split_at_mut(HEADROOM - UDP_HEADER);
    udp[..2].copy_from_slice(&port.to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    udp[6..8].fill(0);
    let sum = |addresses: &[u8]| {
        let sum = Sum::ZERO.pseudo_header(addresses, ip::UDP, udp_len);
        sum.bytes(udp).bytes(message).udp_checksum()
    };
    let (rest, checksum, family) = match (path.source, to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let (rest, header) = rest.split_at_mut(rest.len() - V4_HEADER);
            let total = u16::try_from(V4_HEADER + usize::from(udp_len)).ok()?;
            header.fill(0);
            header[0] = 0x45;
            header[1] = tos;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            // Without "don't fragment", as the kernel's datagrams: a path may have a smaller MTU
            // than the card.
            header[4..6].copy_from_slice(&identification.to_be_bytes());
            header[8] = path.hop_limit;
            header[9] = ip::UDP;
            header[12..16].copy_from_slice(&from.octets());
            header[16..20].copy_from_slice(&to.octets());
            let checksum = Sum::ZERO.bytes(header).checksum();
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            (rest, sum(&header[12..20]), Family::V4)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let (rest, header) = rest.split_at_mut(rest.len() - V6_HEADER);
            header.fill(0);
            header[0] = 0x60 | tos >> 4;
            header[1] = tos << 4;
            header[4..6].copy_from_slice(&udp_len.to_be_bytes());
            header[6] = ip::UDP;
            header[7] = path.hop_limit;
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
            (rest, sum(&header[8..40]), Family::V6)
        }
        _ => return None,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    let header = path.header.with_family(family);
    let start = rest.len().checked_sub(header.bytes().len())?;
    rest[start..].copy_from_slice(header.bytes());
    Some(start)
}

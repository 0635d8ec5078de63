//! Addresses and length of inner packets. The protocol reads nothing else of them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses and length of an inner packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inner {
    /// Source address: must be among the sending peer's allowed IPs.
    pub source: IpAddr,
    /// Destination address: selects the peer.
    pub destination: IpAddr,
    /// Length without padding, from the packet's own header; at most the length of the bytes it
    /// was read from.
    pub length: usize,
}

const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;

/// Reads an IPv4 or IPv6 header. `None` if there is none, or if the packet's length is less than
/// its header's or more than the bytes present.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Inner> {
    let inner = match packet.first()? >> 4 {
        4 => {
            let header: &[u8; IPV4_HEADER_LEN] = packet.first_chunk()?;
            let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let header_len = usize::from(header[0] & 0x0f) * 4;
            if header_len < IPV4_HEADER_LEN || length < header_len {
                return None;
            }
            Inner {
                source: Ipv4Addr::from(*header[12..].first_chunk()?).into(),
                destination: Ipv4Addr::from(*header[16..].first_chunk()?).into(),
                length,
            }
        }
        6 => {
            let header: &[u8; IPV6_HEADER_LEN] = packet.first_chunk()?;
            let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
            Inner {
                source: Ipv6Addr::from(*header[8..].first_chunk::<16>()?).into(),
                destination: Ipv6Addr::from(*header[24..].first_chunk::<16>()?).into(),
                length: IPV6_HEADER_LEN + payload,
            }
        }
        _ => return None,
    };
    (inner.length <= packet.len()).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(total: u16, ihl: u8, actual: usize) -> Vec<u8> {
        let mut packet = vec![0; actual];
        packet[0] = 0x40 | ihl;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[12..16].copy_from_slice(&[192, 0, 2, 1]);
        packet[16..20].copy_from_slice(&[192, 0, 2, 2]);
        packet
    }

    fn v6(payload: u16, actual: usize) -> Vec<u8> {
        let mut packet = vec![0; actual];
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
        packet
    }

    #[test]
    fn length_must_be_honest() {
        assert_eq!(parse(&v4(20, 5, 32)).map(|i| i.length), Some(20));
        assert_eq!(parse(&v4(32, 5, 32)).map(|i| i.length), Some(32));
        assert_eq!(parse(&v4(33, 5, 32)), None);
        assert_eq!(parse(&v4(19, 5, 32)), None);
        assert_eq!(parse(&v4(0, 5, 32)), None);
        assert_eq!(parse(&v4(20, 4, 32)), None);
        assert_eq!(parse(&v4(23, 6, 32)), None, "shorter than its options");
        assert_eq!(parse(&v4(24, 6, 32)).map(|i| i.length), Some(24));
        assert_eq!(parse(&v6(0, 48)).map(|i| i.length), Some(40));
        assert_eq!(parse(&v6(8, 48)).map(|i| i.length), Some(48));
        assert_eq!(parse(&v6(9, 48)), None);
        // 40 + 65,496 does not fit 16 bits: a wrapping sum would be 0.
        for payload in 65_490..=65_535 {
            assert_eq!(parse(&v6(payload, 2000)), None, "{payload}");
        }
    }

    #[test]
    fn addresses() {
        let view = parse(&v4(20, 5, 20)).unwrap();
        assert_eq!(view.source, IpAddr::from([192, 0, 2, 1]));
        assert_eq!(view.destination, IpAddr::from([192, 0, 2, 2]));
    }

    #[test]
    fn everything_too_short_or_unknown_is_refused() {
        for packet in [v4(20, 5, 20), v6(0, 40)] {
            for length in 0..packet.len() {
                assert_eq!(parse(&packet[..length]), None);
            }
        }
        for version in (0..16).filter(|v| *v != 4 && *v != 6) {
            let mut packet = v4(20, 5, 60);
            packet[0] = version << 4 | 5;
            assert_eq!(parse(&packet), None);
        }
    }
}

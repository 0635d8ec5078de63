//! Validated views of inner packets (RFC 791, RFC 8200).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol number of ICMPv4.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// Bytes of an IPv4 header without options.
pub const V4_HEADER: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const V6_HEADER: usize = 40;

/// Error of parsing an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Neither version 4 nor 6.
    #[error("IP version {0} is neither 4 nor 6")]
    Version(u8),
    /// Fewer bytes than the header needs, or than its length field says.
    #[error("truncated: {needed} bytes needed, {available} there")]
    Truncated {
        /// Bytes that the packet should have.
        needed: usize,
        /// Bytes that are available.
        available: usize,
    },
    /// An IPv4 header length below 20 bytes.
    #[error("IPv4 header length of {0} bytes is below 20")]
    HeaderLength(usize),
    /// An IPv4 total length smaller than its header.
    #[error("IPv4 total length {total} is smaller than the header of {header} bytes")]
    TotalLength {
        /// Total length in the header.
        total: usize,
        /// Header length in the header.
        header: usize,
    },
}

/// A version of the Internet protocol, and its address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Family {
    /// IPv4.
    #[cfg_attr(feature = "serde", serde(rename = "Ipv4"))]
    V4,
    /// IPv6.
    #[cfg_attr(feature = "serde", serde(rename = "Ipv6"))]
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A packet whose header was validated.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    family: Family,
    /// At least a header. Exactly as long as the header says; a quoted packet may be shorter.
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Validates the packet at the start of `bytes` and removes the bytes behind it.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed`] if the header contradicts itself or `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (family, needed) = Self::measure(bytes)?;
        let available = bytes.len();
        let bytes = bytes.get(..needed);
        let bytes = bytes.ok_or(Malformed::Truncated { needed, available })?;
        Ok(Self { family, bytes })
    }

    /// Like [`Self::parse`] for a packet quoted in an ICMP error, which may be truncated behind its
    /// header (for IPv6: behind the fixed header).
    ///
    /// # Errors
    ///
    /// Returns [`Malformed`] if the header contradicts itself or is truncated.
    pub fn parse_quoted(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (family, len) = Self::measure(bytes)?;
        let available = bytes.len();
        let bytes = &bytes[..len.min(available)];
        let packet = Self { family, bytes };
        match packet.header_len() {
            needed if needed > available => Err(Malformed::Truncated { needed, available }),
            _ => Ok(packet),
        }
    }

    /// Returns the family and the packet length in the header, which is at least the header's
    /// length. `bytes` contains at least a header without options.
    fn measure(bytes: &[u8]) -> Result<(Family, usize), Malformed> {
        let available = bytes.len();
        let truncated = |needed| Malformed::Truncated { needed, available };
        match bytes.first().map(|byte| byte >> 4) {
            Some(4) => {
                let header = bytes.first_chunk::<V4_HEADER>();
                let header = header.ok_or(truncated(V4_HEADER))?;
                let header_len = usize::from(header[0] & 0xf) * 4;
                let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
                if header_len < V4_HEADER {
                    return Err(Malformed::HeaderLength(header_len));
                }
                if total < header_len {
                    return Err(Malformed::TotalLength {
                        total,
                        header: header_len,
                    });
                }
                Ok((Family::V4, total))
            }
            Some(6) => {
                let header = bytes.first_chunk::<V6_HEADER>();
                let header = header.ok_or(truncated(V6_HEADER))?;
                let payload = u16::from_be_bytes([header[4], header[5]]);
                Ok((Family::V6, V6_HEADER + usize::from(payload)))
            }
            Some(other) => Err(Malformed::Version(other)),
            None => Err(truncated(V4_HEADER)),
        }
    }

    /// The address family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The packet without padding.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of the header: with options for IPv4, without extension headers for IPv6.
    pub fn header_len(&self) -> usize {
        match self.family {
            Family::V4 => usize::from(self.bytes[0] & 0xf) * 4,
            Family::V6 => V6_HEADER,
        }
    }

    /// The source address.
    pub fn source(&self) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from(array::<4>(self.bytes, 12))),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(array::<16>(self.bytes, 8))),
        }
    }

    /// The destination address.
    pub fn destination(&self) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from(array::<4>(self.bytes, 16))),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(array::<16>(self.bytes, 24))),
        }
    }

    /// The protocol, or for IPv6 the first next header.
    pub fn protocol(&self) -> u8 {
        match self.family {
            Family::V4 => self.bytes[9],
            Family::V6 => self.bytes[6],
        }
    }

    /// TOS or traffic class: DSCP and ECN.
    pub fn tos(&self) -> u8 {
        match self.family {
            Family::V4 => self.bytes[1],
            Family::V6 => (self.bytes[0] << 4) | (self.bytes[1] >> 4),
        }
    }

    /// Finds the transport header behind options and extension headers. Returns `None` if an
    /// extension header is truncated.
    pub fn transport(&self) -> Option<Transport> {
        match self.family {
            Family::V4 => {
                let word = u16::from_be_bytes([self.bytes[6], self.bytes[7]]);
                Some(Transport {
                    protocol: self.protocol(),
                    offset: self.header_len(),
                    fragment_offset: (word & 0x1fff) * 8,
                    more_fragments: word & 0x2000 != 0,
                    identification: u16::from_be_bytes([self.bytes[4], self.bytes[5]]).into(),
                })
            }
            Family::V6 => v6_transport(self.bytes),
        }
    }
}

/// The upper layer of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The protocol number.
    pub protocol: u8,
    /// Offset in bytes from the start of the packet. In a fragment other than the first there is no
    /// transport header.
    pub offset: usize,
    /// Offset of this fragment in the unfragmented payload, in bytes.
    pub fragment_offset: u16,
    /// True if further fragments follow.
    pub more_fragments: bool,
    /// The identification of a fragmented packet; 0 for an unfragmented IPv6 packet.
    pub identification: u32,
}

/// Follows the chain of extension headers (RFC 8200 section 4) of an IPv6 packet, which may be
/// truncated behind its headers.
pub(crate) fn v6_transport(bytes: &[u8]) -> Option<Transport> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    const MOBILITY: u8 = 135;

    let mut transport = Transport {
        protocol: *bytes.get(6)?,
        offset: V6_HEADER,
        fragment_offset: 0,
        more_fragments: false,
        identification: 0,
    };
    // Every iteration advances by at least 8 bytes.
    loop {
        let header = || bytes.get(transport.offset..transport.offset + 8);
        let length = match transport.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY => 8 + usize::from(header()?[1]) * 8,
            AUTHENTICATION => 8 + usize::from(header()?[1]) * 4,
            FRAGMENT => {
                let header = header()?;
                let word = u16::from_be_bytes([header[2], header[3]]);
                transport.fragment_offset = word & 0xfff8;
                transport.more_fragments = word & 1 != 0;
                transport.identification = u32::from_be_bytes(array(header, 4));
                8
            }
            _ => return Some(transport),
        };
        transport.protocol = header()?[0];
        transport.offset += length;
        if transport.fragment_offset != 0 {
            return Some(transport);
        }
    }
}

/// Returns `N` bytes at `at`, which must be within `bytes`.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests;

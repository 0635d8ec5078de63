//! The header fields of a packet that translation needs.

use taupe_packet::ip::{self, Family, Packet};

use super::DropReason;
use crate::flows::{End, Tuple};
use crate::tcp;

/// Bytes of a TCP header without options.
pub(super) const TCP_HEADER: usize = 20;
/// Bytes of a UDP header, and of the fixed part of an ICMP message.
const SHORT_HEADER: usize = 8;

/// Protocols whose checksum covers the addresses and is not supported here: DCCP and UDP-Lite.
const UNSUPPORTED: [u8; 2] = [33, 136];

/// The parsed header of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) family: Family,
    pub(super) protocol: u8,
    pub(super) source: u128,
    pub(super) destination: u128,
    /// Length of the packet in bytes; of a quoted packet, the bytes present.
    pub(super) len: usize,
    pub(super) at: usize,
    pub(super) fragment: Option<Fragment>,
    pub(super) content: Content,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    /// Offset in the packet's payload, in bytes.
    pub(super) offset: u16,
    pub(super) identification: u32,
}

impl Fragment {
    pub(super) fn is_first(self) -> bool {
        self.offset == 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    Tcp {
        source: u16,
        destination: u16,
        flags: u8,
    },
    Udp {
        source: u16,
        destination: u16,
    },
    /// ICMP echo.
    Echo {
        id: u16,
        request: bool,
    },
    /// An ICMP error, which quotes a packet.
    Error,
    /// A protocol without ports and without a checksum over the addresses, or a fragment other than
    /// the first.
    Opaque,
}

impl View {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let packet = Packet::parse(bytes).map_err(|_| DropReason::Malformed)?;
        let view = Self::of(packet)?;
        if matches!(view.content, Content::Tcp { .. }) && view.len < view.at + TCP_HEADER {
            // Only a fragment can be so short, and only an attacker sends such a fragment (RFC 1858
            // section 3).
            return Err(DropReason::Malformed);
        }
        Ok(view)
    }

    /// Parses the packet that an ICMP error quotes. It may be cut after the fields that identify
    /// the flow.
    pub(super) fn parse_quoted(bytes: &[u8]) -> Result<Self, DropReason> {
        Self::of(Packet::parse_quoted(bytes).map_err(|_| DropReason::Malformed)?)
    }

    fn of(packet: Packet<'_>) -> Result<Self, DropReason> {
        let bytes = packet.bytes();
        let transport = packet.transport().ok_or(DropReason::Malformed)?;
        let (source, destination) = match packet.family() {
            Family::V4 => (
                u32::from_be_bytes(array(bytes, 12)?).into(),
                u32::from_be_bytes(array(bytes, 16)?).into(),
            ),
            Family::V6 => (
                u128::from_be_bytes(array(bytes, 8)?),
                u128::from_be_bytes(array(bytes, 24)?),
            ),
        };
        let first = transport.fragment_offset == 0;
        let fragment = (transport.more_fragments || !first).then_some(Fragment {
            offset: transport.fragment_offset,
            identification: transport.identification,
        });
        let content = if first {
            content(packet.family(), transport.protocol, bytes, transport.offset)?
        } else {
            Content::Opaque
        };
        Ok(Self {
            family: packet.family(),
            protocol: transport.protocol,
            source,
            destination,
            len: bytes.len(),
            at: transport.offset,
            fragment,
            content,
        })
    }

    /// Returns the bytes after a UDP header; for a super-packet, those of all its segments.
    pub(super) fn datagram_len(&self) -> usize {
        self.len.saturating_sub(self.at + SHORT_HEADER)
    }

    pub(super) fn outgoing(&self) -> Tuple {
        let (source, destination) = self.ends();
        self.tuple(source, destination)
    }

    pub(super) fn incoming(&self) -> Tuple {
        let (source, destination) = self.ends();
        match self.content {
            // The identifier belongs to the local end in both directions.
            Content::Echo { .. } => self.tuple(
                End {
                    ip: self.destination,
                    port: source.port,
                },
                End {
                    ip: self.source,
                    port: 0,
                },
            ),
            _ => self.tuple(destination, source),
        }
    }

    fn tuple(&self, local: End, remote: End) -> Tuple {
        Tuple {
            family: self.family,
            protocol: self.protocol,
            local,
            remote,
        }
    }

    fn ends(&self) -> (End, End) {
        let (from, to) = match self.content {
            Content::Tcp {
                source,
                destination,
                ..
            }
            | Content::Udp {
                source,
                destination,
            } => (source, destination),
            Content::Echo { id, .. } => (id, 0),
            Content::Error | Content::Opaque => (0, 0),
        };
        (
            End {
                ip: self.source,
                port: from,
            },
            End {
                ip: self.destination,
                port: to,
            },
        )
    }

    /// Returns the TCP flags, or 0 for other protocols.
    pub(super) fn flags(&self) -> u8 {
        match self.content {
            Content::Tcp { flags, .. } => flags,
            _ => 0,
        }
    }

    /// Returns true if the packet changes nothing about its flow except the time of its last use.
    pub(super) fn is_plain(&self) -> bool {
        const STATEFUL: u8 = tcp::SYN | tcp::FIN | tcp::RST | tcp::ACK;
        self.fragment.is_none()
            && match self.content {
                Content::Tcp { flags, .. } => flags & STATEFUL == tcp::ACK,
                Content::Udp { .. } | Content::Echo { .. } => true,
                Content::Error | Content::Opaque => false,
            }
    }
}

fn content(family: Family, protocol: u8, bytes: &[u8], at: usize) -> Result<Content, DropReason> {
    let header: [u8; SHORT_HEADER] = match protocol {
        ip::TCP | ip::UDP | ip::ICMP | ip::ICMPV6 => array(bytes, at)?,
        protocol if UNSUPPORTED.contains(&protocol) => return Err(DropReason::Unsupported),
        _ => return Ok(Content::Opaque),
    };
    let source = u16::from_be_bytes([header[0], header[1]]);
    let destination = u16::from_be_bytes([header[2], header[3]]);
    let echo = |request| Content::Echo {
        id: u16::from_be_bytes([header[4], header[5]]),
        request,
    };
    match (family, protocol, header[0]) {
        (_, ip::TCP, _) => Ok(Content::Tcp {
            source,
            destination,
            flags: bytes.get(at + tcp::FLAGS).copied().unwrap_or(0),
        }),
        (_, ip::UDP, _) => Ok(Content::Udp {
            source,
            destination,
        }),
        (Family::V4, ip::ICMP, 0) | (Family::V6, ip::ICMPV6, 129) => Ok(echo(false)),
        (Family::V4, ip::ICMP, 8) | (Family::V6, ip::ICMPV6, 128) => Ok(echo(true)),
        // Unreachable, time exceeded, parameter problem; packet too big. Redirect and source quench
        // are refused.
        (Family::V4, ip::ICMP, 3 | 11 | 12) | (Family::V6, ip::ICMPV6, 1..=4) => Ok(Content::Error),
        _ => Err(DropReason::Unsupported),
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], DropReason> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    bytes.copied().ok_or(DropReason::Malformed)
}

//! Parsing of packets, and the flow of a packet, which decides its verdict.

use std::net::{IpAddr, SocketAddr};

use taupe_packet::ip::{self, Packet, Transport};

use super::Towards;
use taupe_nat::tcp;

pub(super) const DNS: u16 = 53;

/// A flow as seen from this machine, or from its clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Flow {
    pub(super) protocol: u8,
    /// For ICMP echo the port is the identifier or 0.
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

impl Flow {
    /// Returns true if the flow carries DNS queries.
    pub(super) fn is_dns_query(&self) -> bool {
        self.remote.port() == DNS && matches!(self.protocol, ip::UDP | ip::TCP)
    }
}

/// A parsed packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) packet: Packet<'a>,
    transport: Transport,
    pub(super) kind: Kind,
}

/// The content after the IP headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Tcp {
        from: u16,
        to: u16,
        flags: u8,
    },
    Udp {
        from: u16,
        to: u16,
    },
    Echo {
        id: u16,
    },
    /// An ICMP error that quotes a packet at this offset in bytes.
    Error {
        quoted: usize,
    },
    /// Another IP packet at this offset in bytes (RFC 2003, RFC 4213).
    Encapsulated {
        at: usize,
    },
    /// Neighbour, router or group discovery.
    Discovery,
    /// A fragment other than the first.
    LaterFragment,
    Other,
}

impl<'a> View<'a> {
    /// Parses a packet. Returns `None` if it is inconsistent or cut.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        Self::of(Packet::parse(bytes).ok()?)
    }

    /// Parses the packet that an ICMP error quotes.
    pub(super) fn parse_quoted(bytes: &'a [u8]) -> Option<Self> {
        Self::of(Packet::parse_quoted(bytes).ok()?)
    }

    fn of(packet: Packet<'a>) -> Option<Self> {
        let transport = packet.transport()?;
        let kind = match transport.fragment_offset {
            0 => kind(packet, transport)?,
            _ => Kind::LaterFragment,
        };
        Some(Self {
            packet,
            transport,
            kind,
        })
    }

    pub(super) fn source(&self) -> IpAddr {
        self.packet.source()
    }

    pub(super) fn destination(&self) -> IpAddr {
        self.packet.destination()
    }

    pub(super) fn protocol(&self) -> u8 {
        self.transport.protocol
    }

    pub(super) fn transport_at(&self) -> usize {
        self.transport.offset
    }

    pub(super) fn is_fragment(&self) -> bool {
        self.transport.more_fragments || self.kind == Kind::LaterFragment
    }

    /// Returns the fields that all fragments of a packet share.
    pub(super) fn fragment_key(&self) -> (IpAddr, IpAddr, u32) {
        let identification = self.transport.identification;
        (self.source(), self.destination(), identification)
    }

    /// Returns the encapsulated packet, unless it is cut or encapsulates another.
    pub(super) fn encapsulated(&self) -> Option<Self> {
        let Kind::Encapsulated { at } = self.kind else {
            return None;
        };
        let inner = View::parse_quoted(self.packet.bytes().get(at..)?)?;
        let is_readable = !matches!(inner.kind, Kind::Encapsulated { .. } | Kind::LaterFragment);
        is_readable.then_some(inner)
    }

    /// Returns true if it is a TCP SYN.
    pub(super) fn is_syn(&self) -> bool {
        matches!(self.kind, Kind::Tcp { flags, .. } if flags & (tcp::SYN | tcp::ACK) == tcp::SYN)
    }

    /// Returns true if it is a TCP SYN with ACK.
    pub(super) fn is_syn_ack(&self) -> bool {
        let both = tcp::SYN | tcp::ACK;
        matches!(self.kind, Kind::Tcp { flags, .. } if flags & both == both)
    }

    /// Returns the flow of a packet in this direction.
    pub(super) fn flow(&self, towards: Towards) -> Flow {
        let (from, to) = match self.kind {
            Kind::Tcp { from, to, .. } | Kind::Udp { from, to } => (from, to),
            // The identifier belongs to the local end in both directions.
            Kind::Echo { id } if towards == Towards::Card => (id, 0),
            Kind::Echo { id } => (0, id),
            _ => (0, 0),
        };
        let from = SocketAddr::new(self.source(), from);
        let to = SocketAddr::new(self.destination(), to);
        let (local, remote) = match towards {
            Towards::Card => (from, to),
            Towards::System => (to, from),
        };
        Flow {
            protocol: self.protocol(),
            local,
            remote,
        }
    }

    /// Returns the flow of the packet that this ICMP error quotes. That packet goes in the opposite
    /// direction.
    pub(super) fn quoted_flow(&self, towards: Towards) -> Option<Flow> {
        let Kind::Error { quoted } = self.kind else {
            return None;
        };
        let quoted = View::parse_quoted(self.packet.bytes().get(quoted..)?)?;
        Some(quoted.flow(match towards {
            Towards::Card => Towards::System,
            Towards::System => Towards::Card,
        }))
    }

    /// Returns true if the packet is traffic of the link itself: discovery or DHCP with a peer for
    /// which `is_near` returns true, or any packet to or from a link-local address.
    pub(super) fn is_link_traffic(
        &self,
        towards: Towards,
        is_near: impl Fn(IpAddr) -> bool,
    ) -> bool {
        let near = |address| is_group(address) || is_link_local(address) || is_near(address);
        let is_about_it = match self.kind {
            Kind::Discovery => true,
            Kind::Udp { from, to } => {
                matches!((from, to), (68, 67) | (67, 68) | (546, 547) | (547, 546))
            }
            _ => false,
        };
        let remote = match towards {
            Towards::Card => self.destination(),
            Towards::System => self.source(),
        };
        is_about_it && near(self.destination()) || is_link_local(remote)
    }
}

fn kind(packet: Packet<'_>, transport: Transport) -> Option<Kind> {
    const IGMP: u8 = 2;
    const IPV4: u8 = 4;
    const IPV6: u8 = 41;
    const ICMP_HEADER: usize = 8;
    let bytes = packet.bytes();
    let at = transport.offset;
    let header = || bytes.get(at..)?.first_chunk::<8>();
    let ports = || {
        let [a, b, c, d, ..] = *header()?;
        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    };
    Some(match transport.protocol {
        ip::TCP => {
            let (from, to) = ports()?;
            // A quoted packet may be cut before this field.
            let flags = bytes.get(at + tcp::FLAGS).copied().unwrap_or(0);
            Kind::Tcp { from, to, flags }
        }
        ip::UDP => {
            let (from, to) = ports()?;
            Kind::Udp { from, to }
        }
        protocol @ (ip::ICMP | ip::ICMPV6) => {
            let [kind, _, _, _, a, b, ..] = *header()?;
            let id = u16::from_be_bytes([a, b]);
            let quoted = at + ICMP_HEADER;
            match (protocol, kind) {
                (ip::ICMP, 0 | 8) | (ip::ICMPV6, 128 | 129) => Kind::Echo { id },
                (ip::ICMP, 3..=5 | 11 | 12) | (ip::ICMPV6, 0..128) => Kind::Error { quoted },
                // Router discovery, group membership, neighbour discovery.
                (ip::ICMP, 9 | 10) | (ip::ICMPV6, 130..=137 | 143) => Kind::Discovery,
                _ => Kind::Other,
            }
        }
        IGMP => Kind::Discovery,
        IPV4 | IPV6 => Kind::Encapsulated { at },
        _ => Kind::Other,
    })
}

/// Returns true if routers do not forward packets to or from the address.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns true if the address is a multicast group or the broadcast address.
pub(super) fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

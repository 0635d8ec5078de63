//! What decides about a packet: its flow.

use std::net::{IpAddr, SocketAddr};

use taupe_packet::ip::{self, Packet, Transport};

use super::Towards;
use taupe_nat::translate::tcp;

/// Where name servers listen.
pub(super) const DNS: u16 = 53;

/// Two ends, seen from this machine or from its clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Flow {
    pub(super) protocol: u8,
    /// With the identifier of ICMP echo in place of a port, or 0.
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

impl Flow {
    /// Whether it asks for names.
    pub(super) fn is_question(&self) -> bool {
        self.remote.port() == DNS && matches!(self.protocol, ip::UDP | ip::TCP)
    }
}

/// A packet, read.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) packet: Packet<'a>,
    transport: Transport,
    pub(super) kind: Kind,
}

/// What is behind the headers of IP.
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
    /// An ICMP error about a packet that starts so many bytes behind the beginning.
    Error {
        quoted: usize,
    },
    /// Another packet of IP, which starts so many bytes behind the beginning (RFC 2003, RFC 4213).
    Wrapped {
        at: usize,
    },
    /// Discovery of neighbours, routers and groups.
    Discovery,
    /// A fragment that is not the first.
    LaterFragment,
    Other,
}

impl<'a> View<'a> {
    /// Reads a packet; `None` when it contradicts itself or is cut.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        Self::of(Packet::parse(bytes).ok()?)
    }

    /// Reads the packet that an ICMP error quotes.
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

    /// Where the transport header is, in bytes.
    pub(super) fn transport_at(&self) -> usize {
        self.transport.offset
    }

    pub(super) fn is_fragment(&self) -> bool {
        self.transport.more_fragments || self.kind == Kind::LaterFragment
    }

    /// What fragments of one packet have in common.
    pub(super) fn fragment_key(&self) -> (IpAddr, IpAddr, u32) {
        let identification = self.transport.identification;
        (self.source(), self.destination(), identification)
    }

    /// The packet that is wrapped in this one, but for one that is wrapped itself or is cut.
    pub(super) fn wrapped(&self) -> Option<Self> {
        let Kind::Wrapped { at } = self.kind else {
            return None;
        };
        let inner = View::parse_quoted(self.packet.bytes().get(at..)?)?;
        let is_told = !matches!(inner.kind, Kind::Wrapped { .. } | Kind::LaterFragment);
        is_told.then_some(inner)
    }

    /// Whether it asks for a connection of TCP.
    pub(super) fn opens(&self) -> bool {
        matches!(self.kind, Kind::Tcp { flags, .. } if flags & (tcp::SYN | tcp::ACK) == tcp::SYN)
    }

    /// Whether it answers who asks for a connection of TCP.
    pub(super) fn accepts(&self) -> bool {
        let both = tcp::SYN | tcp::ACK;
        matches!(self.kind, Kind::Tcp { flags, .. } if flags & both == both)
    }

    /// The flow of a packet that goes this way.
    pub(super) fn flow(&self, towards: Towards) -> Flow {
        let (from, to) = match self.kind {
            Kind::Tcp { from, to, .. } | Kind::Udp { from, to } => (from, to),
            // The local end's in both directions.
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

    /// The flow of the packet that this ICMP error is about, which goes the other way.
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

    /// Whether it is about the link itself and stays there: discovery and DHCP with whom
    /// `is_near` holds for, what is exchanged with link-local addresses.
    pub(super) fn is_of_link(&self, towards: Towards, is_near: impl Fn(IpAddr) -> bool) -> bool {
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
            // A packet that is quoted may be cut before.
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
                // Router discovery; groups; neighbours.
                (ip::ICMP, 9 | 10) | (ip::ICMPV6, 130..=137 | 143) => Kind::Discovery,
                _ => Kind::Other,
            }
        }
        IGMP => Kind::Discovery,
        IPV4 | IPV6 => Kind::Wrapped { at },
        _ => Kind::Other,
    })
}

/// Whether no router takes a packet to or from there further.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Whether a packet to there is for more than one host.
pub(super) fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

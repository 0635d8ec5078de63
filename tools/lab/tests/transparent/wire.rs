//! Parses captured packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses and ports of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    protocol: u8,
    pub(crate) source: IpAddr,
    destination: IpAddr,
    /// Source and destination port; 0 if there are none.
    pub(crate) ports: [u16; 2],
}

impl Flow {
    /// Returns the flow in the opposite direction.
    pub(crate) const fn reversed(self) -> Self {
        let [source, destination] = self.ports;
        Self {
            protocol: self.protocol,
            source: self.destination,
            destination: self.source,
            ports: [destination, source],
        }
    }

    pub(crate) fn has_port(self, port: u16) -> bool {
        self.ports.contains(&port)
    }
}

/// The parts of a packet that the tests check.
#[derive(Debug)]
pub(crate) struct ParsedPacket {
    pub(crate) flow: Flow,
    /// A TCP reset.
    pub(crate) is_reset: bool,
    /// The flow that an ICMP error quotes.
    pub(crate) about: Option<Flow>,
}

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const RESET: u8 = 4;

/// Parses an IP packet.
pub(crate) fn read(ip: &[u8]) -> Option<ParsedPacket> {
    let (flow, payload) = flow(ip)?;
    let kind = payload.first().copied();
    let is_error = match flow.protocol {
        ICMP => matches!(kind, Some(3 | 11 | 12)),
        ICMPV6 => matches!(kind, Some(0..128)),
        _ => false,
    };
    let quoted = payload.get(8..).filter(|_| is_error);
    Some(ParsedPacket {
        flow,
        is_reset: flow.protocol == TCP && payload.get(13).is_some_and(|flags| flags & RESET != 0),
        about: quoted.and_then(flow_of_quoted),
    })
}

fn flow_of_quoted(ip: &[u8]) -> Option<Flow> {
    flow(ip).map(|(flow, _)| flow)
}

/// Returns the flow of a packet, and the payload behind the IP header.
fn flow(ip: &[u8]) -> Option<(Flow, &[u8])> {
    let (protocol, source, destination, payload): (_, IpAddr, IpAddr, _) = match ip.first()? >> 4 {
        4 => (
            *ip.get(9)?,
            Ipv4Addr::from(array::<4>(ip, 12)?).into(),
            Ipv4Addr::from(array::<4>(ip, 16)?).into(),
            ip.get(usize::from(ip.first()? & 15) * 4..)?,
        ),
        6 => (
            *ip.get(6)?,
            Ipv6Addr::from(array::<16>(ip, 8)?).into(),
            Ipv6Addr::from(array::<16>(ip, 24)?).into(),
            ip.get(40..)?,
        ),
        _ => return None,
    };
    let port = |at| array::<2>(payload, at).map_or(0, u16::from_be_bytes);
    let ports = match protocol {
        TCP | UDP => [port(0), port(2)],
        _ => [0, 0],
    };
    Some((
        Flow {
            protocol,
            source,
            destination,
            ports,
        },
        payload,
    ))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
